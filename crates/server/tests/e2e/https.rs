//! A client small enough to be cruel: it can stop in the middle of a request.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

use crate::server::Server;

/// One connection.
pub(crate) struct Https {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    token: String,
}

impl Https {
    /// Connects as the owner of the data directory would.
    pub(crate) fn connect(server: &Server) -> Self {
        let ca = std::fs::read(server.data().join("pki/ca.crt")).unwrap();
        let token = std::fs::read_to_string(server.data().join("token")).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&ca).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self {
            stream: BufReader::new(StreamOwned::new(connection, stream)),
            token: token.trim().to_owned(),
        }
    }

    /// How long it waits for what it reads.
    pub(crate) fn be_patient_for(&mut self, long: Duration) {
        let stream = &self.stream.get_ref().sock;
        stream.set_read_timeout(Some(long)).unwrap();
    }

    /// Opens a watch, and has its first words when this returns.
    pub(crate) fn watch(server: &Server, path: &str) -> Self {
        let mut client = Self::connect(server);
        let (status, answer) = client.call("GET", path, "").unwrap();
        assert_eq!(status, 200, "{answer}");
        client
    }

    /// Everything until the server ends the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).unwrap();
        rest
    }

    /// Begins a request, and returns when somebody wants to read its body, which comes later.
    pub(crate) fn begin(&mut self, method: &str, path: &str, length: usize) {
        let Self { stream, token } = self;
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\
             expect: 100-continue\r\n\r\n"
        );
        stream.get_mut().write_all(text.as_bytes()).unwrap();
        stream.get_mut().flush().unwrap();
        let mut wanted = [0; 25];
        stream.read_exact(&mut wanted).unwrap();
        assert_eq!(&wanted, b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Sends more of a body.
    pub(crate) fn send_more(&mut self, body: &str) {
        let stream = self.stream.get_mut();
        stream.write_all(body.as_bytes()).unwrap();
        stream.flush().unwrap();
    }

    /// Sends a whole request and reads the answer; `None` if the connection broke.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let Self { stream, token } = self;
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(text.as_bytes()).ok()?;
        stream.get_mut().flush().ok()?;
        self.answer()
    }

    /// Reads an answer.
    pub(crate) fn answer(&mut self) -> Option<(u16, String)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let status = line.split_whitespace().nth(1)?.parse().ok()?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            self.stream.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            let (name, value) = header.split_once(':')?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some((status, String::from_utf8(body).ok()?))
    }
}
