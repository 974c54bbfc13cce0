//! What must not matter: how a prompt is cut, who else is in a batch, whether a prefix is shared, how
//! many tokens come at once, in which order layers are recorded. Bits are equal on each path.

use wgkv::cache::pool::{Operation, Part, PoolConfig};
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::Bits;
use wgkv::shape::Dtype;

use crate::attend::Ask;
use crate::model::Data;
use crate::twin::submit;
use crate::world::{Finish, World, tell};

/// A pool of small pages, a few to a slab.
pub fn config() -> PoolConfig {
    PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: 2,
        heads: 2,
        head_dim_k: 16,
        head_dim_v: 24,
        bits: Some((Bits::Two, Bits::One)),
        chunk: 16,
        sinks: 3,
        recent: 5,
        raw: Dtype::F16,
        byte_budget: 1 << 26,
        slab_bytes: 8 << 10,
    }
}

impl World {
    /// Adds the next tokens of some stories to as many sequences.
    pub fn go_on(&mut self, parts: &[(usize, u64, u32)], prompt: bool) {
        let told = |(place, story, tokens): &(usize, u64, u32)| {
            (*story, self.live[*place].1.seen, *tokens)
        };
        let told: Vec<(u64, u32, u32)> = parts.iter().map(told).collect();
        let incoming = tell(self, Dtype::F16, &told);
        let parts: Vec<(u8, u32)> = parts.iter().map(|part| (part.0 as u8, part.2)).collect();
        assert!(self.add_rows(&parts, prompt, !prompt, &incoming));
    }

    /// A new sequence with a prompt that is finished.
    pub fn prompt(&mut self, story: u64, tokens: u32, how: Finish) -> usize {
        let place = self.begin();
        self.go_on(&[(place, story, tokens)], true);
        assert!(self.finish(place, 0..self.shape.layers, how, true));
        place
    }
}

#[test]
fn a_prompt_in_any_pieces_gives_the_same_bits() {
    let splits: [&[u32]; 5] = [&[50], &[1; 50], &[16, 16, 16, 2], &[3, 1, 46], &[0, 19, 31]];
    for how in [Finish::All, Finish::Uniform(20), Finish::Adaptive(20)] {
        let mut shown = Vec::new();
        for split in splits {
            let mut world = World::both(&config());
            let place = world.begin();
            for tokens in split {
                world.go_on(&[(place, 1, *tokens)], true);
            }
            assert!(world.finish(place, 0..2, how, true));
            world.go_on(&[(place, 1, 30)], false);
            world.check();
            let attended = world.attend(&[0], 1, &Ask::newest(3, &[5]));
            shown.push((world.show(place), attended));
            world.end();
        }
        assert!(shown.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn a_batch_gives_each_member_the_bits_that_it_has_alone() {
    let members = [(11u64, 41u32), (12, 1), (13, 70)];
    let steps = [1u32, 4, 17];
    let mut batch = World::both(&config());
    for (story, tokens) in members {
        batch.prompt(story, tokens, Finish::Adaptive(25));
    }
    for tokens in steps {
        batch.go_on(&[(0, 11, tokens), (1, 12, tokens), (2, 13, tokens)], false);
    }
    batch.check();
    let ask = Ask::newest(2, &[3, 4, 5]);
    let together = batch.attend(&[0, 1, 2], 0, &ask);
    let alone: Vec<_> = (0..3).map(|place| batch.show(place)).collect();
    for (place, (story, tokens)) in members.into_iter().enumerate() {
        let mut world = World::both(&config());
        world.prompt(story, tokens, Finish::Adaptive(25));
        for tokens in steps {
            world.go_on(&[(0, story, tokens)], false);
        }
        world.check();
        assert_eq!(world.show(0), alone[place]);
        let one = world.attend(&[0], 0, &Ask::newest(2, &ask.seeds[place..=place]));
        // Split again, the member's outputs are those that the batch gave it.
        let split = batch.attend(&[place as u8], 0, &Ask::newest(2, &ask.seeds[place..=place]));
        assert_eq!(one, split);
        for ((out, lse), (all_out, all_lse)) in one.iter().zip(&together) {
            let part =
                |all: &[f32]| all[place * all.len() / 3..(place + 1) * all.len() / 3].to_vec();
            assert_eq!((out, lse), (&part(all_out), &part(all_lse)));
        }
        world.end();
    }
    batch.end();
}

#[test]
fn a_shared_prefix_gives_the_bits_of_prompts_of_ones_own() {
    for how in [Finish::All, Finish::Adaptive(30)] {
        let mut shared = World::both(&config());
        let main = shared.begin();
        shared.go_on(&[(main, 1, 45)], true);
        let fork = shared.fork(main);
        assert!(shared.finish(main, 0..2, how, true));
        shared.go_on(&[(fork, 2, 9)], true);
        assert!(shared.finish(fork, 0..2, how, true));
        let late = shared.fork(main);
        shared.go_on(&[(main, 3, 20), (fork, 4, 20), (late, 5, 33)], false);
        shared.check();

        let mut own = World::both(&config());
        own.prompt(1, 45, how);
        let other = own.begin();
        own.go_on(&[(other, 1, 45)], true);
        own.go_on(&[(other, 2, 9)], true);
        assert!(own.finish(other, 0..2, how, true));
        own.prompt(1, 45, how);
        for (place, story, tokens) in [(0, 3, 20), (1, 4, 20), (2, 5, 33)] {
            own.go_on(&[(place, story, tokens)], false);
        }
        own.check();
        for place in 0..3 {
            assert_eq!(shared.show(place), own.show(place));
        }
        let ask = Ask::newest(1, &[9, 8, 7]);
        assert_eq!(shared.attend(&[0, 1, 2], 1, &ask), own.attend(&[0, 1, 2], 1, &ask));
        shared.end();
        own.end();
    }
}

#[test]
fn tokens_one_at_a_time_give_the_bits_of_all_at_once() {
    let splits: [&[u32]; 4] = [&[77], &[1; 77], &[16, 16, 16, 16, 13], &[2, 61, 14]];
    let mut shown = Vec::new();
    for split in splits {
        let mut world = World::both(&config());
        let place = world.prompt(1, 20, Finish::Adaptive(12));
        for tokens in split {
            world.go_on(&[(place, 1, *tokens)], false);
        }
        world.check();
        shown.push((world.show(place), world.attend(&[0], 1, &Ask::newest(1, &[1]))));
        world.end();
    }
    // Packing may also come later, all at once.
    let mut world = World::both(&config());
    let place = world.prompt(1, 20, Finish::Adaptive(12));
    for tokens in [40, 37] {
        let incoming = tell(&world, Dtype::F16, &[(1, world.live[place].1.seen, tokens)]);
        assert!(world.add_rows(&[(0, tokens)], false, false, &incoming));
        world.check();
    }
    assert!(world.flush(&[0]));
    world.check();
    shown.push((world.show(place), world.attend(&[0], 1, &Ask::newest(1, &[1]))));
    assert!(shown.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn layers_may_be_recorded_in_any_order() {
    let mut worlds = [World::both(&config()), World::both(&config())];
    for (backwards, world) in worlds.iter_mut().enumerate() {
        world.prompt(1, 40, Finish::Adaptive(20));
        let rows = tell(world, Dtype::F16, &[(1, 40, 37)]);
        let parts = [Part { sequence: world.live[0].0, tokens: 37 }];
        let append = Operation::Append { parts: &parts, flush: true };
        let layers = if backwards == 1 { [1, 0] } else { [0, 1] };

        let step = world.host.cache.step(&append).unwrap();
        for layer in layers {
            let (keys, values) = (rows[layer].keys.elements(), rows[layer].values.elements());
            let rows = Some(cpu::IncomingRows { keys, values });
            world.host.cache.apply(&step, layer, rows).unwrap();
        }
        let device = world.device.as_mut().unwrap();
        let step = device.cache.step(&append).unwrap();
        let upload = |data: &Data| device.context.upload("rows", data.elements().bytes()).unwrap();
        let buffers: Vec<_> =
            rows.iter().map(|rows| [upload(&rows.keys), upload(&rows.values)]).collect();
        submit(&device.context, |rec| {
            layers.into_iter().try_for_each(|layer| {
                let [keys, values] = buffers[layer].each_ref().map(Slice::all);
                let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
                device.cache.record(rec, &step, layer, Some(rows))
            })
        })
        .unwrap();
        world.booked(0, 37, &rows);
        world.check();
    }
    let [a, b] = worlds.each_mut().map(|world| world.show(0));
    assert_eq!(a, b);
    for world in worlds {
        world.end();
    }
}
