pub(crate) fn list() {}
pub(crate) fn run(_: &str, _: &[&str]) {}
