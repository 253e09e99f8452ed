//! `POST /files/compose`: files that were uploaded in parts become one.
//!
//! The parts are removed after the whole is in place, so that a failure costs nothing but another
//! try.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use rustix::process::{Gid, Uid};
use serde::Deserialize;
use wire::envd::WrittenFile;

use super::{refusal, resolve};
use crate::{
    entry,
    http::{Refusal, json},
    paths::name_of,
    rpc::Body,
    server::Agent,
    users::User,
};

const MAX_REQUEST: usize = 4 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

pub(crate) async fn compose(agent: Arc<Agent>, request: Request<Incoming>) -> Response<Body> {
    match take(&agent, request).await {
        Ok(written) => json(StatusCode::OK, &written),
        Err(refused) => refused.into_response(),
    }
}

fn bad(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

async fn take(agent: &Arc<Agent>, request: Request<Incoming>) -> Result<WrittenFile, Refusal> {
    let body = Limited::new(request.into_body(), MAX_REQUEST)
        .collect()
        .await;
    let body = body.map_err(|why| bad(format!("read request: {why}")))?;
    let asked: Compose = serde_json::from_slice(&body.to_bytes())
        .map_err(|why| bad(format!("read /files/compose: {why}")))?;
    let name = asked.username.as_deref().filter(|name| !name.is_empty());
    let user = agent.user(name).map_err(|why| refusal(&why))?;
    if asked.source_paths.is_empty() {
        return Err(bad("source_paths is empty"));
    }
    if asked.destination.is_empty() {
        return Err(bad("destination is required"));
    }
    let destination = resolve(agent, asked.destination.as_bytes(), &user)?;
    let mut parts = Vec::new();
    for path in &asked.source_paths {
        let path = resolve(agent, path.as_bytes(), &user)?;
        if path == destination || parts.contains(&path) {
            return Err(bad(format!(
                "'{}' can be neither a part twice nor part of itself",
                path.display()
            )));
        }
        parts.push(path);
    }
    let written = WrittenFile {
        path: destination.to_string_lossy().into_owned(),
        name: name_of(&destination),
        kind: "file".to_owned(),
        metadata: Default::default(),
    };
    let done = agent
        .blocking(move || join(&parts, &destination, &user))
        .await;
    done.map_err(|why| refusal(&why))??;
    Ok(written)
}

fn join(parts: &[PathBuf], destination: &Path, user: &User) -> Result<(), Refusal> {
    let failed =
        |doing: &str, path: &Path, why: &io::Error| refusal(&entry::error(doing, path, why));
    if destination.is_dir() {
        return Err(bad(format!(
            "path is a directory: {}",
            destination.display()
        )));
    }
    let mut sources = Vec::new();
    for part in parts {
        let source = File::open(part).map_err(|why| failed("read", part, &why))?;
        if !source.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(bad(format!(
                "path '{}' is not a regular file",
                part.display()
            )));
        }
        sources.push(source);
    }
    if let Some(parent) = destination.parent() {
        entry::ensure_dirs(parent, user).map_err(|why| refusal(&why))?;
    }
    // Beside it, and in its place only when it is whole.
    let mut whole = destination.as_os_str().to_owned();
    whole.push(".composed");
    let whole = PathBuf::from(whole);
    let mut put_together = || -> io::Result<()> {
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o666)
            .open(&whole)?;
        rustix::fs::fchown(
            &out,
            Some(Uid::from_raw(user.uid)),
            Some(Gid::from_raw(user.gid)),
        )?;
        for source in &mut sources {
            io::copy(source, &mut out)?;
        }
        fs::rename(&whole, destination)
    };
    if let Err(why) = put_together() {
        fs::remove_file(&whole).ok();
        return Err(failed("write", destination, &why));
    }
    for part in parts {
        match fs::remove_file(part) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", part, &why));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
