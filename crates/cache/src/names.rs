//! Text that many cached values have in common, kept once.

use std::collections::BTreeSet;

use model::{Name, Namespace};

/// Namespaces and names seen lately. A hundred thousand sandboxes have a few hundred namespaces
/// and templates between them; each would otherwise carry its own copy.
#[derive(Debug, Default)]
pub struct Names {
    namespaces: BTreeSet<Namespace>,
    names: BTreeSet<Name>,
}

/// Most texts of one sort that are remembered. Past it, all are forgotten: those in use stay
/// shared, later ones are shared anew, and what nobody uses any more is freed.
const MOST: usize = 4096;

impl Names {
    /// Replaces a namespace by the shared copy of it.
    pub fn share_namespace(&mut self, namespace: &mut Namespace) {
        share(&mut self.namespaces, namespace);
    }

    /// Replaces a name that repeats (of a template, a pool) by the shared copy of it.
    pub fn share_name(&mut self, name: &mut Name) {
        share(&mut self.names, name);
    }
}

fn share<T: Ord + Clone>(known: &mut BTreeSet<T>, text: &mut T) {
    if let Some(shared) = known.get(text) {
        *text = shared.clone();
        return;
    }
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(text.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_end_up_as_one_text() {
        let mut names = Names::default();
        let mut copies = ["python", "python"].map(|s| Name::new(s).unwrap());
        for copy in &mut copies {
            names.share_name(copy);
        }
        assert_eq!(copies[0].as_str().as_ptr(), copies[1].as_str().as_ptr());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut names = Names::default();
        for n in 0..3 * MOST {
            names.share_name(&mut Name::new(format!("n{n}")).unwrap());
        }
        assert!(names.names.len() <= MOST);
    }
}
