//! A gateway, its external processor, and an Envoy before them.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use ext_proc::{Options, Server, Upstream};
use gateway::{Wake, WakeError};
use routes::{Route, State};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    client::{Answer, once},
    envoy::Envoy,
    world::{Setup, World},
};

/// How long a slow one takes to wake, and an Envoy that waits for less unless it is told to.
const SLOW: Duration = Duration::from_secs(7);
pub(crate) const HASTY: &[(&str, &str)] = &[(" message_timeout: 15s", " message_timeout: 5s")];

pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) envoy: Envoy,
}

impl Stage {
    pub(crate) async fn new(upstream: Upstream) -> Self {
        Self::with(upstream, Setup::default()).await
    }

    pub(crate) async fn with(upstream: Upstream, setup: Setup) -> Self {
        Self::with_changes(upstream, setup, &[]).await
    }

    /// With something else in the place of what the example says.
    pub(crate) async fn with_changes(
        upstream: Upstream,
        mut setup: Setup,
        changes: &'static [(&'static str, &'static str)],
    ) -> Self {
        setup.options.trusts_forwarded = true;
        let world = World::with(setup);
        let server = serve(&world, upstream).await;
        let example = match upstream {
            Upstream::Relay => "envoy.yaml",
            Upstream::Direct => "envoy-direct.yaml",
        };
        let (gateway, address) = (world.address(), server.address());
        let starting = tokio::task::spawn_blocking(move || {
            Envoy::start_with(example, gateway, address, changes)
        });
        Self {
            world,
            server,
            envoy: starting.await.unwrap(),
        }
    }

    /// The same question by either way.
    pub(crate) async fn both(&self, request: &str) -> (Answer, Answer) {
        let own = once(self.world.address(), request).await;
        (own, once(self.envoy.address, request).await)
    }
}

pub(crate) async fn serve(world: &World, upstream: Upstream) -> Server {
    let options = Options {
        upstream,
        ..Options::default()
    };
    serve_with(world, options).await
}

pub(crate) async fn serve_with(world: &World, options: Options) -> Server {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let front = world.gateway.front();
    Server::start(listener, None, front, options).unwrap()
}

/// Ends every wake in the way that the sandbox's name says.
#[derive(Debug)]
pub(crate) struct ByName;

#[async_trait]
impl Wake for ByName {
    async fn wake(&self, route: &Route, _: Instant) -> Result<Arc<Route>, WakeError> {
        let retry_after = Duration::from_secs(2);
        let woken = || {
            Arc::new(Route {
                state: State::Running,
                ..route.clone()
            })
        };
        match route.name.as_str() {
            "wakes" => Ok(woken()),
            "slow" => {
                tokio::time::sleep(SLOW).await;
                Ok(woken())
            }
            "failed" => Err(WakeError::Failed),
            "late" => Err(WakeError::Timeout),
            "full" => Err(WakeError::Overloaded { retry_after }),
            "limit" => Err(WakeError::TeamLimit { retry_after }),
            _ => Err(WakeError::NotFound),
        }
    }
}
