//! A balancer as simple as can be: connections go to whoever says that it is ready.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use kit::Tasks;
use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::{
    http::send,
    installation::{LOOK, PATIENCE},
};

/// How often it asks.
const ASK: Duration = Duration::from_millis(200);

/// One that serves: where, and where it says whether it is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    pub(crate) serves: SocketAddr,
    pub(crate) probes: SocketAddr,
}

/// A balancer. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    backends: Arc<Mutex<Vec<Backend>>>,
    ready: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Balancer {
    pub(crate) async fn start(backends: Vec<Backend>, tasks: &Tasks) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let balancer = Self {
            address: listener.local_addr().unwrap(),
            backends: Arc::new(Mutex::new(backends)),
            ready: Arc::default(),
        };
        balancer.look().await;
        let its = balancer.clone();
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(ASK).await;
                its.look().await;
            }
        });
        let (its, connections, next) = (balancer.clone(), tasks.clone(), AtomicUsize::new(0));
        tasks.spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let ready = its.ready.lock().clone();
                let at = next.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    for n in 0..ready.len() {
                        let to = ready[(at + n) % ready.len()];
                        if let Ok(server) = TcpStream::connect(to).await {
                            return pass(client, server).await;
                        }
                    }
                });
            }
        });
        balancer
    }

    /// Who serves from now on in the place of another.
    pub(crate) fn replace(&self, old: SocketAddr, new: Backend) {
        let mut backends = self.backends.lock();
        backends.retain(|one| one.serves != old);
        backends.push(new);
    }

    /// Waits until connections go there.
    pub(crate) async fn uses(&self, serves: SocketAddr) {
        let used = async {
            while !self.ready.lock().contains(&serves) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let used = tokio::time::timeout(PATIENCE, used).await;
        assert!(used.is_ok(), "{serves} is never ready");
    }

    async fn look(&self) {
        let backends = self.backends.lock().clone();
        let mut ready = Vec::new();
        for one in backends {
            let url = format!("http://{}/readyz", one.probes);
            if send(Method::GET, &url, &[], "")
                .await
                .is_ok_and(|answer| answer.status == 200)
            {
                ready.push(one.serves);
            }
        }
        *self.ready.lock() = ready;
    }
}

async fn pass(mut client: TcpStream, mut server: TcpStream) {
    // How it ends is theirs to see.
    if copy_bidirectional(&mut client, &mut server).await.is_err() {
        let _ = client.set_zero_linger();
    }
}
