//! Names of files that are only for a while.

use std::{
    process,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::Entropy;

/// A name that nobody else has or had: no other thread, no other process over the same directory, none
/// that a crash ended before it could tidy up. The number of a process alone is no such name:
/// containers that share a directory all have one with the same number.
#[must_use]
pub fn name() -> String {
    static OWN: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = OWN.get_or_init(|| Entropy::from_os().u64());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // The number of the process is for who reads the listing of a directory.
    format!("{}-{own:016x}-{number}", process::id())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        env,
        io::{BufRead as _, BufReader, Read as _},
        process::{Command, Stdio},
        thread,
    };

    use super::*;

    #[test]
    fn no_two_threads_make_the_same_name() {
        let made = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| [(); 100].map(|()| name())));
            threads.map(|thread| thread.join().unwrap())
        });
        let names: BTreeSet<_> = made.iter().flatten().collect();
        assert_eq!(names.len(), 400);
    }

    /// Each is the first process of a namespace, and this its first name. Needs root.
    #[test]
    fn no_two_processes_with_the_same_number_make_the_same_name() {
        const TOLD: &str = "KIT_TEST_TELLS_ITS_NAME";
        if env::var_os(TOLD).is_some() {
            println!("\nname={}", name());
            // It lives on until the other has one too.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }
        let own = "unique::tests::no_two_processes_with_the_same_number_make_the_same_name";
        let mut children = [(); 2].map(|()| {
            Command::new("unshare")
                .args(["--pid", "--fork", "--kill-child"])
                .arg(env::current_exe().unwrap())
                .args(["--exact", own, "--nocapture"])
                .env(TOLD, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("unshare of util-linux")
        });
        let names = children.each_mut().map(|child| {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let named =
                lines.find_map(|line| Some(line.unwrap().strip_prefix("name=")?.to_owned()));
            (named.expect("this test needs root"), lines)
        });
        let [(one, _), (other, _)] = &names;
        assert!(one.starts_with("1-") && one.ends_with("-0"), "{one}");
        assert!(other.starts_with("1-") && other.ends_with("-0"), "{other}");
        assert_ne!(one, other);
        for mut child in children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
