//! What goes wrong on the way: after an error every sequence that the failing call did not name is
//! usable and what it was, and so are those that it named where nothing had changed.

use wgkv::Error;
use wgkv::cache::gpu::IncomingRows;
use wgkv::cache::pool::{Keep, Operation, Part};
use wgkv::gpu::{Context, ContextDescriptor, Slice};
use wgkv::layout::pool::PageClass;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::attend::Ask;
use crate::laws::config;
use crate::model::Data;
use crate::support;
use crate::twin::{Device, Twin, submit};
use crate::world::{Finish, World, tell};

#[test]
fn a_budget_reached_in_the_middle_of_a_batch_changes_nothing() {
    let mut config = config();
    let layout = config.layout().unwrap();
    config.slab_bytes = 4 * layout.bytes(PageClass::Raw);
    config.byte_budget = 8 * config.slab_bytes;
    let mut world = World::both(&config);
    for story in 0..3 {
        world.begin();
        world.go_on(&[(story as usize, story, 19)], false);
    }
    let before: Vec<_> = (0..3).map(|place| world.show(place)).collect();
    let mut refused = 0;
    // The first member grows within its page, the second to a new one, the third to many.
    for tokens in [100, 60, 40] {
        let parts = [(0, 0, 1), (1, 19, 17), (2, 19, tokens)];
        let parts = parts.map(|(story, first, tokens): (u64, u32, u32)| (story, first, tokens));
        let rows = tell(&world, Dtype::F16, &parts);
        let chosen: Vec<(u8, u32)> = parts.iter().map(|p| (p.0 as u8, p.2)).collect();
        if world.add_rows(&chosen, false, true, &rows) {
            break;
        }
        refused += 1;
        for (place, before) in before.iter().enumerate() {
            assert_eq!(world.show(place), *before);
        }
        world.check();
        world.attend(&[0, 1, 2], 0, &Ask::newest(1, &[1]));
    }
    assert!(refused > 0);
    world.check();
    world.free(2);
    world.go_on(&[(0, 0, 3), (1, 1, 3)], false);
    world.check();
    world.end();
}

#[test]
fn a_refused_tensor_leaves_the_step_to_be_recorded_again() {
    let config = config();
    let mut world = World::both(&config);
    world.prompt(1, 30, Finish::All);
    world.prompt(2, 40, Finish::All);
    let other = world.show(1);
    let sequence = world.live[0].0;
    let rows = tell(&world, Dtype::F16, &[(1, 30, 7)]);
    let parts = [Part { sequence, tokens: 7 }];
    let append = Operation::Append { parts: &parts, flush: true };
    // The host.
    let step = world.host.cache.step(&append).unwrap();
    let full = |layer: usize| wgkv::cache::cpu::IncomingRows {
        keys: rows[layer].keys.elements(),
        values: rows[layer].values.elements(),
    };
    let short = wgkv::cache::cpu::IncomingRows { keys: full(0).keys.slice(0..16), ..full(0) };
    let fault = world.host.cache.apply(&step, 0, Some(short));
    assert!(matches!(fault, Err(Error::Length { argument: "keys", .. })), "{fault:?}");
    assert!(matches!(world.host.cache.apply(&step, 0, None), Err(Error::Length { .. })));
    assert!(matches!(world.host.cache.apply(&step, 2, None), Err(Error::OutOfRange { .. })));
    for layer in 0..2 {
        world.host.cache.apply(&step, layer, Some(full(layer))).unwrap();
    }
    // The device.
    let device = world.device.as_mut().unwrap();
    let context = device.context.clone();
    let step = device.cache.step(&append).unwrap();
    let dtype = Dtype::F16;
    let buffers: Vec<_> = rows
        .iter()
        .map(|rows| {
            let upload = |data: &[u8]| context.upload("rows", data).unwrap();
            [upload(rows.keys.elements().bytes()), upload(rows.values.elements().bytes())]
        })
        .collect();
    submit(&context, |rec| {
        let [keys, values] = [0, 1].map(|side| Slice::all(&buffers[0][side]));
        let short = Slice { size: 32, ..keys };
        let wrong = [
            Some(IncomingRows { keys: short, values, dtype }),
            Some(IncomingRows { keys, values, dtype: Dtype::F32 }),
            None,
        ];
        for incoming in wrong {
            let fault = device.cache.record(rec, &step, 0, incoming);
            assert!(matches!(fault, Err(Error::Length { .. })), "{fault:?}");
        }
        let fault = device.cache.record(rec, &step, 2, None);
        assert!(matches!(fault, Err(Error::OutOfRange { .. })), "{fault:?}");
        // A buffer that cannot be bound for reading.
        let staging = context.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffers[0][0].size(),
            usage: wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let unusable = IncomingRows { keys: Slice::all(&staging), values, dtype };
        let fault = device.cache.record(rec, &step, 0, Some(unusable));
        assert!(matches!(fault, Err(Error::BufferUsage { .. })), "{fault:?}");
        for (layer, [keys, values]) in buffers.iter().enumerate() {
            let (keys, values) = (Slice::all(keys), Slice::all(values));
            device.cache.record(rec, &step, layer, Some(IncomingRows { keys, values, dtype }))?;
        }
        Ok(())
    })
    .unwrap();
    world.booked(0, 7, &rows);
    world.check();
    assert_eq!(world.show(1), other);
    world.end();
}

#[test]
fn an_eviction_that_no_longer_fits_is_refused() {
    let config = config();
    let mut world = World::both(&config);
    let place = world.begin();
    world.go_on(&[(place, 1, 40)], true);
    let id = world.live[place].0;
    let evict = Finish::Adaptive(10).config(&world.shape).unwrap();
    world.host.evict(id, 0, &evict).unwrap();
    world.device.as_mut().unwrap().evict(id, 0, &evict).unwrap();
    // The prompt grows after it was scored.
    world.go_on(&[(place, 1, 5)], true);
    assert!(matches!(world.host.finish_evicted(), Err(Error::Mismatch { .. })));
    assert!(matches!(world.device.as_mut().unwrap().finish_evicted(), Err(Error::Mismatch { .. })));
    world.check();
    let bad = [
        EvictConfig { sinks: 2, ..evict },
        EvictConfig { budget: Budget::Adaptive { per_head: 10, heads: 3 }, ..evict },
        EvictConfig { safeguard: f64::NAN, ..evict },
    ];
    for config in bad {
        let host = world.host.evict(id, 0, &config).unwrap_err();
        let device = world.device.as_mut().unwrap().evict(id, 0, &config).unwrap_err();
        assert_eq!(host.to_string(), device.to_string());
    }
    // Counts without positions cannot be carried out.
    let forked = world.host.fork(id).unwrap();
    let fork = Operation::Finish { sequence: forked, layers: 0..1, keep: Keep::Counts(&[10, 10]) };
    let step = world.host.cache.step(&fork).unwrap();
    assert!(matches!(world.host.cache.apply(&step, 0, None), Err(Error::Unfinished { .. })));
    world.host.free(forked).unwrap();
    assert!(world.finish(place, 0..2, Finish::Adaptive(10), true));
    world.check();
}

#[test]
fn a_lost_device_is_an_error_and_others_go_on() {
    let limits = wgpu::Limits { max_storage_buffers_per_shader_stage: 8, ..Default::default() };
    let (device, queue) = support::device(&limits);
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let config = config();
    let mut world = World::both(&config);
    let mut lost = World::new(&config, Some(Device::new(&context, &config)));
    for world in [&mut world, &mut lost] {
        world.prompt(1, 40, Finish::Adaptive(20));
        world.go_on(&[(0, 1, 20)], false);
        world.check();
    }
    let id = lost.live[0].0;
    let twin = lost.device.as_mut().unwrap();
    // Recorded before the loss, read after it.
    let slab = twin.cache.slabs(PageClass::Raw, 0).iter().flatten().next().unwrap().clone();
    let before = submit(&context, |rec| rec.read_back(Slice::all(&slab))).unwrap();
    device.destroy();
    let _ = device.poll(wgpu::PollType::wait_indefinitely());
    let _ = pollster::block_on(before);
    let rows = tell(&world, Dtype::F16, &[(1, 60, 200)]);
    let parts = [Part { sequence: id, tokens: 200 }];
    let fault = twin.step(&Operation::Append { parts: &parts, flush: true }, &rows);
    assert!(matches!(fault, Err(Error::DeviceLost { .. })), "{fault:?}");
    // The account still answers, and sequences can be ended.
    assert!(twin.pool().rows(id, 0, 0).is_ok());
    twin.free(id).unwrap();
    twin.shrink().unwrap();
    assert_eq!(twin.allocated(), 0);
    // Another device has lost nothing.
    world.go_on(&[(0, 1, 33)], false);
    world.check();
    world.attend(&[0], 0, &Ask::newest(1, &[1]));
    world.end();
}

#[test]
fn a_device_lost_between_two_layers_of_a_step() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let config = config();
    let mut world = World::new(&config, Some(Device::new(&context, &config)));
    world.prompt(1, 40, Finish::All);
    let id = world.live[0].0;
    let rows = tell(&world, Dtype::F16, &[(1, 40, 30)]);
    let twin = world.device.as_mut().unwrap();
    let parts = [Part { sequence: id, tokens: 30 }];
    let step = twin.cache.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
    let buffers: Vec<_> = rows
        .iter()
        .map(|rows| {
            let upload = |data: &[u8]| context.upload("rows", data).unwrap();
            [upload(rows.keys.elements().bytes()), upload(rows.values.elements().bytes())]
        })
        .collect();
    let incoming = |layer: usize| {
        let [keys, values] = buffers[layer].each_ref().map(Slice::all);
        Some(IncomingRows { keys, values, dtype: Dtype::F16 })
    };
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut recorder = wgkv::gpu::Recorder::new(&context, &mut encoder);
    twin.cache.record(&mut recorder, &step, 0, incoming(0)).unwrap();
    device.destroy();
    // Whether the loss is noticed here depends on what is recorded; at its end it is.
    let _ = twin.cache.record(&mut recorder, &step, 1, incoming(1));
    let slab = twin.cache.slabs(PageClass::Raw, 0).iter().flatten().next().unwrap();
    let readback = recorder.read_back(Slice::all(slab)).unwrap();
    let fault = recorder.finish();
    assert!(matches!(fault, Err(Error::DeviceLost { .. })), "{fault:?}");
    drop(encoder);
    let fault = pollster::block_on(readback);
    assert!(matches!(fault, Err(Error::DeviceLost { .. })), "{fault:?}");
}

#[test]
fn a_device_lost_between_recording_and_submission() {
    for submitted in [false, true] {
        let (device, queue) = support::device(&wgpu::Limits::default());
        let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
        let config = config();
        let mut world = World::new(&config, Some(Device::new(&context, &config)));
        world.prompt(1, 40, Finish::All);
        let id = world.live[0].0;
        let twin = world.device.as_mut().unwrap();
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut recorder = wgkv::gpu::Recorder::new(&context, &mut encoder);
        let evict = Finish::Uniform(10).config(&world.shape).unwrap();
        let fresh = twin.cache.begin();
        assert!(twin.cache.evict(&mut recorder, fresh, 0, &evict).is_err());
        let saving = twin.cache.save(&mut recorder, &[id]).unwrap();
        recorder.finish().unwrap();
        if submitted {
            queue.submit([encoder.finish()]);
            device.destroy();
        } else {
            device.destroy();
            queue.submit([encoder.finish()]);
        }
        let _ = device.poll(wgpu::PollType::wait_indefinitely());
        // What had run may still be read; what had not is an error, at once.
        let saved = pollster::block_on(saving);
        assert!(submitted || matches!(saved, Err(Error::DeviceLost { .. })));
    }
}

#[test]
fn queries_at_the_end_of_all_positions() {
    let mut world = World::both(&config());
    world.prompt(1, 40, Finish::All);
    let ask = |first, window| Ask { first: Some(vec![first]), window, ..Ask::newest(3, &[1]) };
    // Three query tokens end at the last position that a token can have.
    let last = u32::MAX - 3;
    for (first, window) in [(last, None), (last, Some(u32::MAX)), (0, Some(u32::MAX))] {
        world.attend(&[0], 0, &ask(first, window));
    }
    let id = world.live[0].0;
    let queries = Data::F32(vec![1.0; 4 * 3 * 16]);
    let beyond =
        world.on_both(|twin| twin.attend(&[id], 0, &ask(last + 1, None), &queries).map(drop));
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
    world.end();
}

#[test]
fn tensors_in_memory_that_is_written_are_refused() {
    let config = config();
    let mut world = World::both(&config);
    world.prompt(1, 30, Finish::All);
    let id = world.live[0].0;
    let device = world.device.as_mut().unwrap();
    let context = device.context.clone();
    let (dtype, tokens) = (Dtype::F16, 30);
    let [keys, values] = [16u64, 24].map(|dim| 2 * 30 * dim * 2);
    let both = context.create("both", 4096 + values).unwrap();
    let part = |offset, size| Slice { buffer: &both, offset, size };
    let mut batch = device.cache.batch(&[id]).unwrap();
    let mut fetch = |keys, values| {
        let to = wgkv::cache::gpu::Fetch { keys, values, positions: None, tokens, dtype };
        submit(&context, |rec| device.cache.fetch(rec, &mut batch, 0, &to))
    };
    let fault = fetch(part(0, keys), part(256, values));
    assert!(matches!(fault, Err(Error::Offsets { .. })), "{fault:?}");
    // Two halves of one buffer serve.
    fetch(part(0, keys), part(4096, values)).unwrap();
    let expected = world.host.fetch(&[id], 0, tokens, dtype).unwrap();
    let got: Vec<u16> = support::download_as(&both);
    let bits = |floats: &[f32]| match Data::new(dtype, floats) {
        Data::F16(data) => data.iter().map(|x| x.to_bits()).collect::<Vec<u16>>(),
        _ => unreachable!(),
    };
    assert_eq!(got[..keys as usize / 2], bits(&expected.keys));
    assert_eq!(got[2048..2048 + values as usize / 2], bits(&expected.values));

    // Rows out of the cache itself.
    let device = world.device.as_mut().unwrap();
    let parts = [Part { sequence: id, tokens: 1 }];
    let rows = tell(&World::host(&config), Dtype::F16, &[(1, 30, 1)]);
    let append = Operation::Append { parts: &parts, flush: true };
    let step = device.cache.step(&append).unwrap();
    let slabs = [0, 1].map(|layer| {
        device.cache.slabs(PageClass::Raw, layer).iter().flatten().next().unwrap().clone()
    });
    let wrong = submit(&context, |rec| {
        let own = Slice::all(&slabs[0]);
        let incoming = IncomingRows { keys: own, values: own, dtype };
        device.cache.record(rec, &step, 0, Some(incoming))
    });
    assert!(matches!(wrong, Err(Error::Offsets { .. })), "{wrong:?}");
    let upload = |data: &Data| context.upload("rows", data.elements().bytes()).unwrap();
    let buffers: Vec<_> =
        rows.iter().map(|rows| [upload(&rows.keys), upload(&rows.values)]).collect();
    submit(&context, |rec| {
        buffers.iter().enumerate().try_for_each(|(layer, buffers)| {
            let [keys, values] = buffers.each_ref().map(Slice::all);
            device.cache.record(rec, &step, layer, Some(IncomingRows { keys, values, dtype }))
        })
    })
    .unwrap();
    let step = world.host.cache.step(&append).unwrap();
    for (layer, rows) in rows.iter().enumerate() {
        let (keys, values) = (rows.keys.elements(), rows.values.elements());
        let rows = Some(wgkv::cache::cpu::IncomingRows { keys, values });
        world.host.cache.apply(&step, layer, rows).unwrap();
    }
    world.booked(0, 1, &rows);
    world.check();
    world.end();
}
