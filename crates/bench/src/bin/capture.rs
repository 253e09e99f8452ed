//! Putting a sandbox's files to sleep, beside the least that it can cost: an archive of the same
//! change, hashed and synced; and beside `tar | zstd` and the bare disk where the change is large.
//!
//! With the word `resumes`, only those are measured.
//!
//! Needs root, `zstd`, and the agent as it is handed out:
//! `cargo build --profile agent -p dormouse-agent --target x86_64-unknown-linux-musl`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bench::{Samples, Target, verdict};
use model::{Digest, Generation, OperationId, Uid, workload::WorkloadSpec};
use runtime::{Fence, Runtime as _};
use runtime_local::{LocalRuntime, Options};
use sha2::{Digest as _, Sha256};

const ROUNDS: u128 = 60;
const MIB: usize = 1 << 20;
/// Files of a change of one MiB.
const FILES: usize = 16;
/// Of a large change, in MiB.
const LARGE: usize = 1024;

type Done<T = ()> = Result<T, Box<dyn Error>>;

struct Bench {
    runtime: LocalRuntime,
    threads: tokio::runtime::Runtime,
    data: PathBuf,
    scratch: PathBuf,
}

fn main() -> Done {
    let program = std::env::current_exe()?;
    // Beside the program: the file system that is built on, never one in memory.
    let directory = tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?;
    let bench = Bench::new(directory.path(), &program)?;
    match std::env::args().nth(1).as_deref() {
        Some("resumes") => bench.resumes(),
        _ => {
            bench.small_changes()?;
            bench.resumes()?;
            bench.large_change()
        }
    }
}

fn fence(number: u128, generation: u64) -> Fence {
    Fence {
        uid: Uid::from_random(number + 1),
        generation: Generation(generation),
        operation: OperationId(1),
    }
}

/// An image of as many MiB, over the agent's own needs: it is static.
fn make_image(at: &Path, mib: usize) -> io::Result<()> {
    for directory in ["dev", "proc", "sys", "tmp", "run", "etc", "data"] {
        fs::create_dir_all(at.join(directory))?;
    }
    let mut file = File::create(at.join("etc/passwd"))?;
    file.write_all(b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")?;
    for number in 0..mib / 10 {
        fill(&at.join(format!("data/{number}")), 10 * MIB, number as u64)?;
    }
    Ok(())
}

/// Bytes that do not compress.
fn fill(at: &Path, length: usize, seed: u64) -> io::Result<()> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    File::create(at)?.write_all(&bytes[..length])
}

impl Bench {
    fn new(directory: &Path, program: &Path) -> Done<Self> {
        let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
        let arch = std::env::consts::ARCH;
        let agent = format!("{arch}-unknown-linux-musl/agent/dormouse-agent");
        let agent = target.join(agent);
        if !agent.is_file() {
            return Err(format!("{} is missing: build it first", agent.display()).into());
        }
        let mut options = Options::new(&agent);
        options.init_args = ["--pid1", "--user", "user"].map(str::to_owned).into();
        options.network = None;
        for (name, mib) in [("small", 10), ("large", 1000)] {
            let image = directory.join(name);
            make_image(&image, mib)?;
            options.images.insert(name.into(), image);
        }
        let scratch = directory.join("scratch");
        fs::create_dir(&scratch)?;
        let data = directory.join("data");
        Ok(Self {
            runtime: LocalRuntime::open(&data, options)?,
            threads: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .build()?,
            data,
            scratch,
        })
    }

    fn create(&self, at: Fence, image: &str, from: Option<Digest>) -> Done {
        let spec = WorkloadSpec {
            images: [("main", image)].into_iter().collect(),
            from,
            ..WorkloadSpec::default()
        };
        self.threads.block_on(self.runtime.create(at, &spec))?;
        Ok(())
    }

    fn upper(&self, at: Fence) -> PathBuf {
        let sandbox = self.data.join("sandboxes").join(at.uid.to_string());
        sandbox.join("upper")
    }

    fn delete(&self, at: Fence) -> Done {
        Ok(self.threads.block_on(self.runtime.delete(at))?)
    }

    /// From awake to a layer that is durable.
    fn pause(&self, at: Fence) -> Done<(Duration, Digest)> {
        let begun = Instant::now();
        let digest = self.threads.block_on(async {
            self.runtime.freeze(at).await?;
            let captured = self.runtime.capture(at, None).await?;
            Ok::<_, runtime::RuntimeError>(captured.digest)
        })?;
        Ok((begun.elapsed(), digest))
    }

    /// An archive of a directory: hashed, written and synced, with nothing else about it.
    fn archive(&self, of: &Path) -> io::Result<Duration> {
        struct Hashed(io::BufWriter<File>, Sha256);
        impl Write for Hashed {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let written = self.0.write(bytes)?;
                self.1.update(&bytes[..written]);
                Ok(written)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.0.flush()
            }
        }
        let begun = Instant::now();
        let path = self.scratch.join("baseline");
        let file = io::BufWriter::with_capacity(1 << 18, File::create(&path)?);
        let mut tar = tar::Builder::new(Hashed(file, Sha256::new()));
        tar.append_dir_all(".", of)?;
        let Hashed(file, hash) = tar.into_inner()?;
        file.into_inner()?.sync_data()?;
        std::hint::black_box(hash.finalize());
        let took = begun.elapsed();
        fs::remove_file(path)?;
        Ok(took)
    }

    fn small_changes(&self) -> Done {
        let mut of_image = [Samples::default(), Samples::default()];
        let mut baseline = Samples::default();
        for round in 0..ROUNDS {
            for (which, image) in ["small", "large"].into_iter().enumerate() {
                let at = fence(round * 2 + which as u128, 1);
                self.create(at, image, None)?;
                let change = self.upper(at).join("changed");
                fs::create_dir(&change)?;
                for number in 0..FILES {
                    let seed = (round as u64) << 8 | number as u64;
                    fill(&change.join(number.to_string()), MIB / FILES, seed)?;
                }
                // First times fill caches.
                let (took, _) = self.pause(at)?;
                let least = self.archive(&change)?;
                if round >= 5 {
                    of_image[which].record(took);
                    baseline.record(least);
                }
                self.delete(at)?;
            }
        }
        baseline.print("tar + sha256 + fdatasync of 1 MiB");
        of_image[0].print("pause, 1 MiB changed on 10 MB");
        of_image[1].print("pause, 1 MiB changed on 1 GB");
        let p50 = |samples: &Samples| samples.quantile(0.5).as_secs_f64();
        let (small, large) = (p50(&of_image[0]), p50(&of_image[1]));
        verdict(
            "pause on 1 GB / tar + sha256",
            large / p50(&baseline),
            Target::AtMost(3.0),
        );
        verdict(
            "pause on 1 GB / on 10 MB",
            large / small,
            Target::AtMost(1.2),
        );
        Ok(())
    }

    fn resumes(&self) -> Done {
        let first = fence(10_000, 1);
        self.create(first, "large", None)?;
        fill(&self.upper(first).join("changed"), MIB, 7)?;
        let (_, layer) = self.pause(first)?;
        self.delete(first)?;
        let (mut cold, mut resumed) = (Samples::default(), Samples::default());
        for round in 0..ROUNDS {
            for (samples, from) in [(&mut cold, None), (&mut resumed, Some(layer.clone()))] {
                let at = fence(20_000 + round, 1 + u64::from(from.is_some()));
                let begun = Instant::now();
                self.create(at, "large", from)?;
                if round >= 5 {
                    samples.record(begun.elapsed());
                }
                self.delete(at)?;
            }
        }
        cold.print("cold create");
        resumed.print("resume from 1 MiB of files");
        let ratio = resumed.quantile(0.5).as_secs_f64() / cold.quantile(0.5).as_secs_f64();
        verdict("resume / cold create", ratio, Target::AtMost(1.3));
        Ok(())
    }

    fn large_change(&self) -> Done {
        let at = fence(30_000, 1);
        self.create(at, "small", None)?;
        let change = self.upper(at).join("changed");
        fs::create_dir(&change)?;
        for number in 0..LARGE / 8 {
            fill(&change.join(number.to_string()), 8 * MIB, number as u64)?;
        }
        rustix::fs::syncfs(&File::open(&change)?)?;
        let rate = |took: Duration| LARGE as f64 / took.as_secs_f64();
        let before = peak_kib()?;
        let (took, _) = self.pause(at)?;
        let ours = rate(took);
        let peak = peak_kib()?.saturating_sub(before);
        let shell = |script: &str| -> Done<f64> {
            let begun = Instant::now();
            let status = Command::new("sh")
                .args(["-c", script])
                .env("CHANGE", &change)
                .env("OUT", self.scratch.join("out"))
                .status()?;
            let took = begun.elapsed();
            fs::remove_file(self.scratch.join("out"))?;
            match status.success() {
                true => Ok(rate(took)),
                false => Err("this benchmark needs tar and zstd".into()),
            }
        };
        let packed =
            shell("tar -C \"$CHANGE\" -cf - . | zstd -q -3 -T2 -o \"$OUT\" && sync \"$OUT\"")?;
        let mib = LARGE;
        let raw = shell(&format!(
            "dd if=/dev/zero of=\"$OUT\" bs=1M count={mib} conv=fdatasync status=none"
        ))?;
        println!("capture of 1 GiB {ours:.0} MiB/s, tar | zstd {packed:.0}, disk {raw:.0}");
        println!("its peak of memory beyond what was used before {peak} KiB");
        verdict(
            "capture / slower of the two",
            ours / packed.min(raw),
            Target::AtLeast(0.7),
        );
        self.delete(at)
    }
}

fn peak_kib() -> Done<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmHWM")?.parse()?)
}
