//! What a person needs next, on stdout, when the server is ready.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use model::workload::Secret;

use crate::{
    config::{Settings, forwards::Forward, types::Listen},
    ssh_door::Opened,
};

/// What there is to say.
#[derive(Debug)]
pub(crate) struct Announcement<'a> {
    pub(crate) url: &'a str,
    pub(crate) settings: &'a Settings,
    pub(crate) kubeconfig: &'a Path,
    pub(crate) ca: &'a Path,
    /// Where the E2B API is: in plain HTTP, and with TLS where there is a domain.
    pub(crate) e2b: Option<&'a [SocketAddr]>,
    /// Ports of the host that lead into sandboxes.
    pub(crate) forwards: &'a [(SocketAddr, Forward)],
    /// Where SSH is served, if it is.
    pub(crate) ssh: Option<&'a Opened>,
    /// Shown this once.
    pub(crate) first_key: Option<Secret>,
}

/// Says it.
pub(crate) fn announce(what: &Announcement<'_>) {
    // A closed stdout is no reason not to serve.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text(what).as_bytes());
}

fn text(what: &Announcement<'_>) -> String {
    let mut text = String::new();
    let kubeconfig = what.kubeconfig.display();
    let _ = write!(
        text,
        "Dormouse {} serves {}\n\
         Data directory: {}\n\
         Kubeconfig:     {kubeconfig}\n",
        env!("CARGO_PKG_VERSION"),
        what.url,
        what.settings.data_dir,
    );
    if let Some(addresses) = what.e2b {
        let _ = write!(text, "\n{}", e2b_text(what, addresses));
    }
    for (address, forward) in what.forwards {
        let (to, port) = (&forward.to, forward.port);
        let _ = write!(text, "\n{address} leads to port {port} of {to}\n");
    }
    if let (Some(opened), Some(listen)) = (what.ssh, &what.settings.ssh_listen.0) {
        let _ = write!(
            text,
            "\nOver SSH, with a key of the team (`dormouse key ssh add FILE`):\n  \
               ssh SANDBOX_ID@{} -p {}\n\
             Host key: {}\n",
            listen.client_host(),
            opened.address.port(),
            opened.fingerprint,
        );
    }
    let _ = write!(
        text,
        "\n\
         In another terminal:\n  \
           export KUBECONFIG={kubeconfig}\n  \
           kubectl get sandboxes\n\
         or, without kubectl:\n  \
           dormouse get sandboxes --kubeconfig {kubeconfig}\n",
    );
    text
}

fn e2b_text(what: &Announcement<'_>, addresses: &[SocketAddr]) -> String {
    let mut text = String::from("For E2B SDKs:\n");
    match &what.first_key {
        Some(key) => {
            let _ = writeln!(text, "  export E2B_API_KEY={}", key.reveal());
        }
        None => text.push_str("  export E2B_API_KEY=…  (shown at the first start; `dormouse key create` makes another)\n"),
    }
    let host = what.settings.e2b_listen.client_host();
    if let Some(plain) = addresses.first() {
        let url = format!("http://{}", Listen::authority(host, plain.port()));
        let _ = writeln!(
            text,
            "  export E2B_API_URL={url}\n  export E2B_SANDBOX_URL={url}"
        );
    }
    if let (Some(domain), Some(tls)) = (&what.settings.e2b_domain.0, addresses.get(1)) {
        let _ = writeln!(
            text,
            "or with TLS on {tls}, for names that lead there:\n  export E2B_DOMAIN={domain}",
        );
        if what.settings.e2b_certificate.0.is_none() {
            let ca = what.ca.display();
            let _ = writeln!(
                text,
                "  export SSL_CERT_FILE={ca}        # Python\n  \
                   export NODE_EXTRA_CA_CERTS={ca}  # Node",
            );
        }
    }
    if what.first_key.is_some() {
        text.push_str("The key is shown this once.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Environment, load};

    #[test]
    fn a_first_start_shows_the_key_and_the_lines_for_sdks_once() {
        let environment = Environment {
            variables: std::collections::BTreeMap::new(),
            is_root: true,
        };
        let settings = load(&environment, None, &[]).unwrap().settings;
        let addresses = ["127.0.0.1:4000".parse().unwrap()];
        let mut what = Announcement {
            url: "https://127.0.0.1:7443",
            settings: &settings,
            kubeconfig: Path::new("/d/kubeconfig"),
            ca: Path::new("/d/pki/ca.crt"),
            e2b: Some(&addresses),
            forwards: &[],
            ssh: None,
            first_key: Some(Secret::new("e2b_0123")),
        };
        let first = text(&what);
        assert!(first.contains("export E2B_API_KEY=e2b_0123\n"), "{first}");
        assert!(
            first.contains("E2B_API_URL=http://127.0.0.1:4000\n"),
            "{first}"
        );
        what.first_key = None;
        let later = text(&what);
        assert!(!later.contains("e2b_0123"), "{later}");
        assert!(later.contains("dormouse key create"), "{later}");
    }
}
