//! Nothing secret is ever written to a log, however much is logged. In a process of its own,
//! because a process has one log.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::{
    io::{self, Read as _, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use auth::Seal;
use gateway::{Gateway, Listen, NoWake, Options, Ports, Timeless};
use kit::{Entropy, SystemClock};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{Address, Gate, Message, Route, Snapshot, State, Table, Writer};
use runtime::{Family, Inside, RuntimeError, Trusting};

#[derive(Debug)]
struct NoInside;

impl Inside for NoInside {
    fn socket(&self, uid: Uid, _: Family) -> Result<std::os::fd::OwnedFd, RuntimeError> {
        Err(RuntimeError::Absent(uid))
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_or_signature_is_ever_logged() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();

    let seal = Seal::new([9; 32]);
    let id = SandboxId::new("box").unwrap();
    let access = seal.access(&id, true);
    let gate = |hash: Option<Box<str>>| Gate::Token(hash.unwrap().parse().unwrap());
    let route = Route {
        version: Version::from_u64(2),
        epoch: Epoch(1),
        uid: Uid::from_random(1),
        namespace: Namespace::new("team").unwrap(),
        name: Name::new("box").unwrap(),
        id: Some(id.clone()),
        state: State::Running,
        address: Some(Address::Pod(Ipv4Addr::LOCALHOST.into())),
        wake_on_traffic: false,
        is_closing: false,
        agent: gate(access.agent_token),
        traffic: gate(access.traffic_token),
        owner: None,
        mask_host: None,
    };
    let table = Arc::new(Table::default());
    let empty = Snapshot {
        version: Version::from_u64(1),
        routes: Vec::new(),
    };
    table.replace_all(empty, Duration::ZERO);
    table.apply(Writer::Watch, Message::from(route), Duration::ZERO);
    let ports = Ports {
        routes: table,
        inside: Arc::new(NoInside),
        pods: Arc::new(Trusting),
        wake: Arc::new(NoWake),
        progress: Arc::new(Timeless),
        seal: Some(seal.clone()),
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(Entropy::seeded(1)),
    };
    let listen = Listen {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls: None,
    };
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let gateway = Gateway::start(ports, options, vec![listen], None).unwrap();
    let address = gateway.addresses()[0];

    // A program that takes connections and says nothing, and a port where nothing is.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = silent.accept() {
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let secrets = [
        seal.agent_token(&id).reveal().to_owned(),
        seal.traffic_token(&id).reveal().to_owned(),
        "a-wrong-guess-of-a-token".to_owned(),
        "v1_c2lnbmF0dXJl".to_owned(),
        "Basic dXNlcjpwYXNz".to_owned(),
    ];
    for port in [49983, silent_port, 1] {
        for secret in &secrets {
            for head in [
                "GET /files?path=a&signature=SECRET HTTP/1.1",
                "POST /x?token=SECRET HTTP/1.1",
                "bro ken SECRET",
            ] {
                let head = head.replace("SECRET", &secret.replace(' ', "%20"));
                let mut stream = TcpStream::connect(address).unwrap();
                let text = format!(
                    "{head}\r\nHost: {port}-box.sbx.test\r\nX-Access-Token: {secret}\r\n\
                     e2b-traffic-access-token: {secret}\r\nAuthorization: {secret}\r\n\
                     Cookie: {secret}\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(text.as_bytes()).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    }
    gateway.drain(Duration::from_secs(600)).await.unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("refused") && text.contains("gave no answer"),
        "{text}"
    );
    for secret in &secrets {
        assert!(!text.contains(secret.as_str()), "{secret} in {text}");
    }
}
