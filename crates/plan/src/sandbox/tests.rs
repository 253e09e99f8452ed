mod life;
mod world;

use super::*;

/// A step in a word: what is published is named by its phase.
fn word(step: &Step) -> String {
    match step {
        Step::Publish(status, _) => format!("→{}", status.phase),
        Step::Intend(intent) => format!("Intend {intent:?}"),
        Step::DeleteRecord(_) => "DeleteRecord".into(),
        Step::Create(Some(_)) => "Create from layer".into(),
        Step::Create(None) => "Create".into(),
        other => format!("{other:?}"),
    }
}
