use super::*;

fn step(kind: &str, args: &[&str]) -> AskedStep {
    AskedStep {
        kind: kind.into(),
        args: args.iter().map(ToString::to_string).collect(),
        ..AskedStep::default()
    }
}

fn read(steps: Vec<AskedStep>) -> Result<Recipe> {
    Recipe::read(Asked {
        from_image: Some("debian:12".into()),
        steps,
        ..Asked::default()
    })
}

#[test]
fn steps_are_read_whatever_case_they_are_written_in() {
    let files = "a".repeat(64);
    let copy = AskedStep {
        files_hash: Some(files.clone()),
        ..step("Add", &["./a/../b/*.py", "/x/", "root:root", "0644"])
    };
    let recipe = read(vec![
        step("run", &["echo a", ""]),
        copy,
        step("ARG", &["A", "b"]),
    ])
    .unwrap();
    assert_eq!(
        recipe.steps[0].does,
        Instruction::Run {
            command: "echo a".into(),
            user: None
        }
    );
    assert_eq!(
        recipe.steps[1].does,
        Instruction::Copy(Copy {
            source: "b/*.py".into(),
            target: "/x/".into(),
            owner: Some("root:root".into()),
            mode: Some(0o644),
            files,
        })
    );
    assert_eq!(
        recipe.steps[2].does,
        Instruction::Env(vec![("A".into(), "b".into())])
    );
}

#[test]
fn a_bad_step_is_named_with_what_is_wrong() {
    let hashed = |args: &[&str]| AskedStep {
        files_hash: Some("0".repeat(64)),
        ..step("COPY", args)
    };
    let cases = [
        (step("HEALTHCHECK", &["x"]), "not an instruction"),
        (step("RUN", &[]), "no command"),
        (step("COPY", &["a", "b"]), "no filesHash"),
        (hashed(&["a"]), "a source and a destination"),
        (hashed(&["../a", "b"]), "leaves the context"),
        (hashed(&["a/../../b", "b"]), "leaves the context"),
        (hashed(&["/etc/passwd", "b"]), "leaves the context"),
        (hashed(&["a", "b", "x y"]), "user:group"),
        (hashed(&["a", "b", "", "rwx"]), "octal"),
        (step("ENV", &["A"]), "names and values"),
        (step("ENV", &["A B", "c"]), "name of a variable"),
        (step("USER", &["a b"]), "name a user"),
        (step("USER", &["a:b"]), "the group \"b\" cannot be chosen"),
        (step("WORKDIR", &[""]), "no path"),
    ];
    for (asked, said) in cases {
        let wrong = format!("{asked:?}");
        let refused = read(vec![step("RUN", &["true"]), asked]).unwrap_err();
        let told = refused.to_string();
        assert!(told.starts_with("steps[1]: "), "{told}");
        assert!(told.contains(said), "{wrong}: {told}");
    }
}

#[test]
fn it_starts_from_one_thing() {
    let none = Recipe::read(Asked::default()).unwrap_err();
    assert!(none.to_string().starts_with("fromImage"), "{none}");
    let both = Recipe::read(Asked {
        from_image: Some("a".into()),
        from_template: Some("b".into()),
        ..Asked::default()
    });
    assert!(both.unwrap_err().to_string().contains("not both"));
    let base = Recipe::read(Asked {
        from_image: Some("e2bdev/base".into()),
        ..Asked::default()
    });
    assert!(matches!(base.unwrap().base, Base::Template(name) if name == "base"));
}

#[test]
fn a_login_shows_nothing() {
    let login = Login {
        user: "me".into(),
        password: Secret::new("hush"),
    };
    assert_eq!(format!("{login:?}"), "Login(…)");
}
