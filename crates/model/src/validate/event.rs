//! Rules for events: none, for only control writes them.

use super::{Problems, Rules};
use crate::{event::EventSpec, meta::Object};

impl Rules for EventSpec {
    fn check(_: &Object<Self>, _: &mut Problems) {}
}
