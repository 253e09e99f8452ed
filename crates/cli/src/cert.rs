//! `dormouse cert`: the server's own authority, for programs that should trust it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::{connect::Connection, print};

/// Where to write it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Write it to this file instead of the output
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let (target, kubeconfig) = arguments.connection.target(is_root)?;
    let (shown, named) = match &arguments.out {
        Some(path) => {
            let text = target.ca_pem.as_bytes();
            kit::durable::write_file(path, text, 0o644)
                .with_context(|| format!("write {}", path.display()))?;
            let full = std::fs::canonicalize(path)?;
            (String::new(), full.display().to_string())
        }
        None => (target.ca_pem, "dormouse-ca.crt".to_owned()),
    };
    print(&shown)?;
    eprintln!(
        "This is the certificate authority of the server in {}. It is not secret.\n\
         Whoever trusts it trusts what that server signs: its API, and the domain of its sandboxes.\n\
         \n\
         Python:      export SSL_CERT_FILE={named}\n\
         Node:        export NODE_EXTRA_CA_CERTS={named}\n\
         curl:        curl --cacert {named} …\n\
         Debian:      cp {named} /usr/local/share/ca-certificates/dormouse.crt && update-ca-certificates\n\
         Fedora:      cp {named} /etc/pki/ca-trust/source/anchors/ && update-ca-trust\n\
         macOS:       security add-trusted-cert -d -k /Library/Keychains/System.keychain {named}\n\
         Firefox:     Settings, Certificates, View Certificates, Authorities, Import",
        kubeconfig.display()
    );
    Ok(())
}
