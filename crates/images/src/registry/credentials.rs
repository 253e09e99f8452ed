//! Who we are to a registry.

use std::{collections::BTreeMap, fmt, fs, io};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::RegistryOptions;
use crate::error::{Doing as _, ImageError, Result};

/// A user and a password, or a token; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// A user and a password.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// The value of an `Authorization` header.
    pub(super) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.user, self.password);
        format!("Basic {}", STANDARD.encode(pair))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
}

/// The credentials for a registry, if there are any. The file is read each time: people log in
/// while a server runs.
pub(super) fn find(options: &RegistryOptions, registry: &str) -> Result<Option<Credentials>> {
    if let Some(found) = options.credentials.get(registry) {
        return Ok(Some(found.clone()));
    }
    let Some(path) = &options.docker_config else {
        return Ok(None);
    };
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.doing(format!("read {}", path.display()))?,
    };
    // What is wrong with it is not said: the text may be a secret.
    let malformed = |why: &str| ImageError::malformed(path.display().to_string(), why);
    let config: DockerConfig =
        serde_json::from_slice(&text).map_err(|_| malformed("not Docker's configuration"))?;
    let host = |key: &str| {
        let key = key.trim_start_matches("https://");
        let key = key.trim_start_matches("http://");
        let key = key.split('/').next().unwrap_or_default();
        match key {
            "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
            other => other.to_owned(),
        }
    };
    let found = config
        .auths
        .into_iter()
        .find(|(key, _)| host(key) == registry);
    let Some((_, auth)) = found else {
        return Ok(None);
    };
    if !auth.username.is_empty() {
        return Ok(Some(Credentials::new(auth.username, auth.password)));
    }
    if auth.auth.is_empty() {
        // A credential helper has them.
        return Ok(None);
    }
    let pair = STANDARD
        .decode(auth.auth)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
    let (user, password) =
        pair.ok_or_else(|| malformed("an `auth` is not base64 of user:password"))?;
    Ok(Some(Credentials::new(user, password)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> (tempfile::TempDir, RegistryOptions) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        kit::durable::write_file(&path, text.as_bytes(), 0o600).unwrap();
        let options = RegistryOptions {
            docker_config: Some(path),
            ..RegistryOptions::default()
        };
        (directory, options)
    }

    #[test]
    fn dockers_configuration_is_understood() {
        let auth = STANDARD.encode("me:se:cret");
        let (_directory, options) = options(&format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}},
                "example.com:5000": {{"username": "a", "password": "b"}}, "helped.com": {{}}}}}}"#
        ));
        let found = |registry| find(&options, registry).unwrap();
        assert_eq!(found("docker.io"), Some(Credentials::new("me", "se:cret")));
        assert_eq!(found("example.com:5000"), Some(Credentials::new("a", "b")));
        assert_eq!(found("helped.com"), None);
        assert_eq!(found("other.com"), None);
    }

    #[test]
    fn no_error_and_no_debug_text_shows_a_secret() {
        let (_directory, options) = options(r#"{"auths": {"a.com": {"auth": "hunter2!"}}"#);
        let error = find(&options, "a.com").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        let shown = format!("{:?}", Credentials::new("me", "hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
