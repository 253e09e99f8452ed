//! Gateways behind relays that can be cut.

use std::net::SocketAddr;

use bench::Result;
use kit::Tasks;
use mesh::Role;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::node::{Node, Plan, eventually, listed};

/// Gateways that know each other, and for each whether others reach it.
pub(crate) async fn behind(
    count: usize,
    tasks: &Tasks,
) -> Result<(Vec<Node>, Vec<watch::Sender<bool>>)> {
    let (mut nodes, mut relays) = (Vec::<Node>::new(), Vec::new());
    for _ in 0..count {
        let (front, listener) = (
            TcpListener::bind("127.0.0.1:0").await?,
            TcpListener::bind("127.0.0.1:0").await?,
        );
        let plan = Plan {
            role: Role::Gateway,
            advertise: front.local_addr()?,
            seeds: nodes.iter().map(|n| n.address).collect(),
            table: Some(listed()),
            listener,
        };
        let to = plan.listener.local_addr()?;
        nodes.push(Node::start(plan, tasks)?);
        let (sender, passes) = watch::channel(true);
        tasks.spawn(relay(front, to, passes, tasks.clone()));
        relays.push(sender);
    }
    eventually(|| {
        nodes
            .iter()
            .all(|n| n.mesh.stats().in_standing == count - 1)
    })
    .await?;
    Ok((nodes, relays))
}

async fn relay(front: TcpListener, to: SocketAddr, passes: watch::Receiver<bool>, tasks: Tasks) {
    loop {
        let accepted = tokio::select! {
            () = tasks.stopping().cancelled() => return,
            accepted = front.accept() => accepted,
        };
        let Ok((mut near, _)) = accepted else { return };
        let (mut passes, stop) = (passes.clone(), tasks.stopping().clone());
        tasks.spawn(async move {
            if !*passes.borrow_and_update() {
                return;
            }
            let Ok(mut far) = TcpStream::connect(to).await else {
                return;
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = passes.changed() => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
