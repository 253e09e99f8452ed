//! The daemon of a node, which answers control loops and is nobody's peer.
//!
//! Nodes run what others wrote, so what one of them holds must be worth nothing elsewhere. It is not
//! the peer key: it is one certificate, its key, and the certificates of the authorities, made once by
//! who holds the peer key. With it a daemon is known as [`NODE`] by who connects to nodes, and knows
//! peers by their certificates. It cannot speak as anybody, to peers or to other nodes, because the
//! certificate is good for listening only; nor be taken for a peer, because it has another name; nor
//! make certificates.

use std::{fmt, sync::Arc};

use rcgen::ExtendedKeyUsagePurpose;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server};

use crate::{IdentityError, Keys, authority, certificate, server_of};

/// What the daemon of a node calls itself.
pub const NODE: &str = "node.dormouse.internal";

/// What a daemon shows to who connects, and what it demands of them.
#[derive(Clone)]
pub struct NodeIdentity(Arc<ServerConfig>);

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeIdentity(…)")
    }
}

/// Why a text is no identity of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeIdentityError {
    /// Something is not there, or not in PEM.
    #[error("it is not what `dormouse install` makes of the peer key: {0}")]
    Malformed(#[from] rustls::pki_types::pem::Error),
    /// It says nothing of whom to answer.
    #[error("it holds no certificate of an authority, so nobody could be answered")]
    NoAuthority,
    /// Its parts do not belong together.
    #[error("its certificates cannot be used: {0}")]
    Unusable(#[from] IdentityError),
}

impl NodeIdentity {
    /// What the nodes of an installation are given, as text: for who holds its peer keys. It is a
    /// secret.
    ///
    /// # Errors
    /// If certificates cannot be made.
    pub fn issue(keys: &Keys) -> Result<String, IdentityError> {
        let first = authority(keys.first()?)?.1;
        let (signed, pair) = certificate(&first, NODE, &[ExtendedKeyUsagePurpose::ServerAuth])?;
        let mut text = signed.pem() + &pair.serialize_pem();
        for key in &keys.0 {
            text += &authority(key)?.0.pem();
        }
        Ok(text)
    }

    /// The identity that such a text is.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, NodeIdentityError> {
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())?;
        let certificates: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let mut certificates = certificates?.into_iter();
        let own: Vec<_> = certificates.by_ref().take(1).collect();
        let mut roots = RootCertStore::empty();
        for authority in certificates {
            let added = roots.add(authority);
            added.map_err(crate::broken)?;
        }
        if roots.is_empty() {
            return Err(NodeIdentityError::NoAuthority);
        }
        let provider = Arc::new(ring::default_provider());
        let config = server_of(&provider, &Arc::new(roots), own, key)?;
        Ok(Self(config))
    }

    /// Takes a connection that was accepted for one of a peer.
    ///
    /// # Errors
    /// If whoever is on the other side does not hold the peer key, or leaves.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(Arc::clone(&self.0)).accept(stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Identity,
        tests::{ONE, OTHER, exchange, holding, talks},
    };

    fn issued(keys: &str) -> String {
        NodeIdentity::issue(&Keys::parse(keys).expect("keys")).expect("a text")
    }

    fn node(keys: &str) -> NodeIdentity {
        NodeIdentity::parse(&issued(keys)).expect("an identity")
    }

    /// Whether a peer and a node hear each other.
    async fn reaches(peer: &Identity, node: &NodeIdentity) -> bool {
        exchange(|near| peer.connect_to_node(near), |far| node.accept(far)).await
    }

    /// Somebody who does with what a node holds all that can be done with it.
    fn thief(keys: &str) -> Identity {
        let text = issued(keys);
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).expect("a key");
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        let mut certificates: Vec<_> = certificates.map(|c| c.expect("one")).collect();
        let authorities = certificates.split_off(1);
        let mut roots = RootCertStore::empty();
        authorities
            .into_iter()
            .for_each(|authority| roots.add(authority).expect("a root"));
        let (provider, roots) = (Arc::new(ring::default_provider()), Arc::new(roots));
        let shown = certificates.clone();
        Identity {
            server: server_of(&provider, &roots, shown, key.clone_key()).expect("a server"),
            client: crate::client_of(&provider, &roots, certificates, key).expect("a client"),
        }
    }

    #[tokio::test]
    async fn a_node_answers_those_who_hold_the_peer_key_and_nobody_else() {
        assert!(reaches(&holding(ONE), &node(ONE)).await);
        assert!(!reaches(&holding(OTHER), &node(ONE)).await);
        assert!(!reaches(&holding(ONE), &node(OTHER)).await);
    }

    #[tokio::test]
    async fn what_a_node_holds_opens_neither_peers_nor_other_nodes() {
        let thief = thief(ONE);
        assert!(!talks(&thief, &holding(ONE)).await, "it speaks to a peer");
        assert!(!talks(&holding(ONE), &thief).await, "it poses as a peer");
        assert!(!reaches(&thief, &node(ONE)).await, "it orders a node");
    }

    #[tokio::test]
    async fn a_peer_is_no_node() {
        let (asks, answers) = (holding(ONE), holding(ONE));
        let taken = exchange(|s| asks.connect_to_node(s), |s| answers.accept(s));
        assert!(!taken.await);
    }

    #[tokio::test]
    async fn nodes_follow_a_key_that_is_replaced_without_a_gap() {
        let both = format!("{ONE}\n{OTHER}");
        let turned = format!("{OTHER}\n{ONE}");
        for (peer, of_node) in [(ONE, &*both), (&*both, &*both), (&*turned, &*both)] {
            assert!(reaches(&holding(peer), &node(of_node)).await);
        }
        assert!(reaches(&holding(&turned), &node(&turned)).await);
        assert!(reaches(&holding(OTHER), &node(&turned)).await);
    }

    #[test]
    fn what_is_no_identity_is_refused() {
        assert!(matches!(
            NodeIdentity::parse(ONE),
            Err(NodeIdentityError::Malformed(_))
        ));
        let text = issued(ONE);
        let cut = text.rfind("-----BEGIN").expect("an authority");
        assert!(matches!(
            NodeIdentity::parse(&text[..cut]),
            Err(NodeIdentityError::NoAuthority)
        ));
    }
}
