//! What runs out: memory, threads, links, the room for a replay's steps.

use crate::support::{File, Folder, check_refusal, pair, wgkv};

#[cfg(target_os = "linux")]
mod linux {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::support::Run;

    /// Runs the program with so much address space, in KiB.
    fn within(kib: u64, args: &[&std::ffi::OsStr]) -> Run {
        let out = Command::new("sh")
            .args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_wgkv"))
            .args(args)
            // Each thread of the C library's allocator would reserve 64 MiB.
            .envs([("MALLOC_ARENA_MAX", "1"), ("RAYON_NUM_THREADS", "1")])
            .output()
            .expect("there is a shell");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let code = out.status.code().unwrap_or(-1);
        Run { code, stdout: text(out.stdout), stderr: text(out.stderr) }
    }

    /// Keys and values of 64 MiB each, zeros that take no room on the disk.
    fn large(folder: &Folder) -> std::path::PathBuf {
        let shape = [1, 1, 1 << 18, 128];
        let bytes = 2 * shape.iter().product::<usize>() as u64;
        let entry = |begin: u64| {
            let ends = [begin, begin + bytes];
            serde_json::json!({"dtype": "F16", "shape": shape, "data_offsets": ends})
        };
        let mut file = File::new();
        file.header.insert("layers.0.k".into(), entry(0));
        file.header.insert("layers.0.v".into(), entry(bytes));
        let header = file.bytes();
        let path = folder.write("large.st", &header);
        let handle = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        handle.set_len(header.len() as u64 + 2 * bytes).expect("a file with a hole");
        path
    }

    #[test]
    fn memory_that_is_not_there_is_a_refusal() {
        let folder = Folder::new();
        let input = large(&folder);
        let out = folder.path("y.st");
        let refused = |mib: u64, verb: &str, words: &[&str]| {
            let args = [verb.as_ref(), input.as_os_str(), "-o".as_ref(), out.as_os_str()];
            let cpu = ["--backend", "cpu"].map(AsRef::as_ref);
            let run = within(mib << 10, &[&args[..], &cpu].concat());
            check_refusal(&run, 2, words, &format!("{verb} within {mib} MiB"));
            assert_eq!(folder.names(), ["large.st"], "{verb}");
        };
        for verb in ["compress", "evict", "quantize"] {
            let room = "67108864 bytes do not fit in memory";
            refused(70, verb, &["large.st", "layers.0.k", room]);
            refused(130, verb, &["large.st", "layers.0.v", room]);
        }
        // Room for the input and little more.
        for verb in ["compress", "evict"] {
            refused(190, verb, &["large.st", "bytes more do not fit in memory"]);
        }
    }

    #[test]
    fn without_threads_one_does_the_work() {
        let folder = Folder::new();
        let input = folder.write("x.st", &pair([1, 2, 200, 64]).bytes());
        let ran = Command::new(env!("CARGO_BIN_EXE_wgkv"))
            .args(["quantize".as_ref(), input.as_os_str(), "-o".as_ref()])
            .args([folder.path("out.st").as_os_str(), "--backend".as_ref(), "cpu".as_ref()])
            // No stack is as large, so no thread starts.
            .env("RUST_MIN_STACK", (1u64 << 60).to_string())
            .output()
            .expect("it starts");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }

    #[test]
    fn threads_beyond_reason_are_not_started() {
        let folder = Folder::new();
        let input = folder.write("x.st", &pair([1, 2, 200, 64]).bytes());
        let run = |threads: &str, out: &str| {
            let start = std::time::Instant::now();
            let out = folder.path(out);
            let ran = Command::new(env!("CARGO_BIN_EXE_wgkv"))
                .args(["compress".as_ref(), input.as_os_str(), "-o".as_ref(), out.as_os_str()])
                .args(["--backend", "cpu"])
                .env("RAYON_NUM_THREADS", threads)
                .output()
                .expect("it starts");
            assert!(ran.status.success(), "{threads}: {}", String::from_utf8_lossy(&ran.stderr));
            assert!(start.elapsed().as_secs() < 20, "{threads}: {:?}", start.elapsed());
            std::fs::read(out).expect("it was written")
        };
        let one = run("1", "one.st");
        for threads in ["100000", "0", "no number", "18446744073709551616"] {
            assert!(run(threads, "other.st") == one, "{threads}");
        }
    }

    #[test]
    fn an_output_that_is_a_link_to_nothing_is_refused() {
        let folder = Folder::new();
        let input = folder.write("x.st", &pair([1, 1, 40, 32]).bytes());
        let link = |to: &Path, name: &str| {
            symlink(to, folder.path(name)).expect("a link");
            folder.path(name)
        };
        let nothing = link(&folder.path("nothing.st"), "dangling.st");
        let a = link(&folder.path("b.st"), "a.st");
        let b = link(&a, "b.st");
        for path in [&nothing, &a, &b] {
            let line = ["score".as_ref(), input.as_os_str(), "-o".as_ref(), path.as_os_str()];
            let run = wgkv(line);
            check_refusal(&run, 2, &["link that leads to no file"], &path.display().to_string());
            assert!(path.is_symlink(), "{}", path.display());
        }
        assert_eq!(folder.names(), ["a.st", "b.st", "dangling.st", "x.st"]);
    }
}

#[test]
fn a_replay_that_would_write_without_end_is_refused() {
    let folder = Folder::new();
    let input = folder.write("x.st", &pair([1, 1, 2000, 64]).bytes());
    // 512,000 bytes a step.
    let mut ops = vec!["{\"append\": 2000}".to_string()];
    ops.extend((0..9000).map(|i| format!("{{\"fork\": \"f{i}\"}}")));
    let ops = folder.write("ops.json", format!("[{}]", ops.join(",")).as_bytes());
    let ops = ["--ops", ops.to_str().expect("a path"), "--backend", "cpu"];
    let words = ["ops.json", "step 8388", "4294967296", "each writes all"];
    folder.refuses("replay", &input, &ops, &words);
    let many = vec!["{\"append\": 0}"; 100_001].join(",");
    let ops = folder.write("ops.json", format!("[{many}]").as_bytes());
    let ops = ["--ops", ops.to_str().expect("a path"), "--backend", "cpu"];
    folder.refuses("replay", &input, &ops, &["ops.json", "100001 steps, more than 100000"]);
}
