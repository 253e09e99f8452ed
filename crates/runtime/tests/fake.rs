//! The fake keeps what every runtime must, whatever it can do.

use kit::Tasks;
use model::StringMap;
use runtime::{Abilities, Keeps, Publication, conformance, fake::FakeRuntime};

fn images() -> StringMap {
    [("main", "image:1")].into_iter().collect()
}

fn fake(freeze: bool, keeps: Keeps) -> FakeRuntime {
    FakeRuntime::new(Tasks::default()).able(Abilities { freeze, keeps })
}

#[tokio::test]
async fn the_fake_is_a_runtime_with_every_set_of_abilities() {
    let to = Publication {
        registry: "registry.example".into(),
        secret: None,
        parent: None,
    };
    for freeze in [true, false] {
        for keeps in [Keeps::Here, Keeps::InRegistry, Keeps::Nowhere] {
            let runtime = fake(freeze, keeps);
            conformance::run_with(&runtime, images(), Some(&to)).await;
            conformance::run_commands_with(&runtime, images(), Some(&to)).await;
        }
        let runtime = fake(freeze, Keeps::InRegistry);
        conformance::run(&runtime, images()).await;
    }
}
