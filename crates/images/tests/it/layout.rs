//! Images that the tests make themselves: OCI layouts, written by hand.

use std::{fs, io::Write as _, path::Path};

use serde_json::{Value, json};

use crate::archives::{Tar, sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pack {
    Plain,
    Gzip,
    Zstd,
}

pub(crate) fn pack(archive: &[u8], how: Pack) -> Vec<u8> {
    match how {
        Pack::Plain => archive.to_vec(),
        Pack::Gzip => {
            let level = flate2::Compression::fast();
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), level);
            writer.write_all(archive).unwrap();
            writer.finish().unwrap()
        }
        Pack::Zstd => zstd::encode_all(archive, 1).unwrap(),
    }
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    kit::durable::write_file(path, bytes, 0o600).unwrap();
}

/// A layout that is being written.
pub(crate) struct Layout {
    pub(crate) directory: tempfile::TempDir,
    manifests: Vec<Value>,
}

impl Layout {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
        let version = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        write(&directory.path().join("oci-layout"), version.as_bytes());
        Self {
            directory,
            manifests: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn blob(&self, bytes: &[u8]) -> String {
        let digest = sha256(bytes);
        let name = digest.trim_start_matches("sha256:");
        write(&self.path().join("blobs/sha256").join(name), bytes);
        digest
    }

    /// An image of these archives; answers its descriptor.
    pub(crate) fn image(&self, architecture: &str, layers: &[(Vec<u8>, Pack)]) -> Value {
        let diff_ids: Vec<_> = layers.iter().map(|(layer, _)| sha256(layer)).collect();
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {
                "Env": ["PATH=/bin", "FROM=image"], "User": "1000:1000", "WorkingDir": "/work",
                "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"], "Labels": null,
            },
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        self.image_with(&config, architecture, layers)
    }

    pub(crate) fn image_with(
        &self,
        config: &Value,
        architecture: &str,
        layers: &[(Vec<u8>, Pack)],
    ) -> Value {
        let descriptor = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": self.blob(bytes), "size": bytes.len()});
        let layers: Vec<_> = layers
            .iter()
            .map(|(layer, how)| {
                let suffix = match how {
                    Pack::Plain => "",
                    Pack::Gzip => "+gzip",
                    Pack::Zstd => "+zstd",
                };
                let kind = format!("application/vnd.oci.image.layer.v1.tar{suffix}");
                descriptor(&kind, &pack(layer, *how))
            })
            .collect();
        let config = config.to_string();
        let config = descriptor(
            "application/vnd.oci.image.config.v1+json",
            config.as_bytes(),
        );
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers,
        });
        let mut found = descriptor(kind, manifest.to_string().as_bytes());
        found["platform"] = json!({"os": "linux", "architecture": architecture});
        found
    }

    /// Several images under one descriptor.
    pub(crate) fn index(&self, images: &[Value]) -> Value {
        let kind = "application/vnd.oci.image.index.v1+json";
        let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": images});
        let index = index.to_string();
        json!({"mediaType": kind, "digest": self.blob(index.as_bytes()), "size": index.len()})
    }

    pub(crate) fn add(mut self, mut image: Value, name: Option<&str>) -> Self {
        if let Some(name) = name {
            image["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        }
        self.manifests.push(image);
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        write(
            &self.path().join("index.json"),
            index.to_string().as_bytes(),
        );
        self
    }
}

pub(crate) const ARCH: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else {
    "arm64"
};
pub(crate) const OTHER_ARCH: &str = if cfg!(target_arch = "x86_64") {
    "arm64"
} else {
    "amd64"
};

/// Three layers, each compressed in another way; the uppermost changes those below.
pub(crate) fn three_layers() -> Vec<(Vec<u8>, Pack)> {
    let lowest = Tar::default()
        .directory("etc")
        .file("etc/name", b"lowest")
        .file("etc/gone", b"")
        .directory("d")
        .file("d/hidden", b"")
        .end();
    let middle = Tar::default()
        .file("etc/name", b"middle")
        .file("large", &noise(300_000))
        .end();
    let top = Tar::default()
        .file("etc/.wh.gone", b"")
        .directory("d")
        .file("d/.wh..wh..opq", b"")
        .file("d/shown", b"")
        .end();
    vec![
        (lowest, Pack::Gzip),
        (middle, Pack::Zstd),
        (top, Pack::Plain),
    ]
}

/// Bytes that do not compress.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn simple(content: &[u8]) -> Vec<(Vec<u8>, Pack)> {
    vec![(Tar::default().file("file", content).end(), Pack::Gzip)]
}
