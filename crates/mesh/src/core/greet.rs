//! Who is there: greeting, refusing, and making links to those who lack one.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use super::{Core, LinkId, Output, Side, link::Peer};
use crate::{
    frame::{FORMAT, Frame, Hello, MAGIC},
    why::Why,
};

impl Core {
    pub(super) fn hello(&self) -> Hello {
        Hello {
            magic: MAGIC.to_owned(),
            format: FORMAT,
            cluster: self.options.cluster.clone(),
            process: self.ground.process,
            role: self.options.role,
            address: self.options.address,
            listens: self.ground.book.is_some() || self.ground.ear.is_some(),
            keeps: self.ground.book.is_some(),
            watched: self.watched(),
        }
    }

    pub(super) fn take_hello(&mut self, id: LinkId, hello: &Hello, now: Duration) {
        // Its format is ours, or it would not have been read.
        let why = if hello.cluster != self.options.cluster {
            Some(Why::Cluster)
        } else if hello.process == self.ground.process {
            Some(Why::Myself)
        } else {
            None
        };
        if let Some(why) = why {
            return self.close(id, why, now);
        }
        let Some(side) = self.links.get(&id).map(|link| link.side) else {
            return;
        };
        // Of two links of one kind to one process, who dialled keeps the older and who was dialled
        // the newer: the older one may be a process's that does not know yet that it was cut off.
        let other = self.links.iter().find(|(other, link)| {
            **other != id
                && link.same_side(side)
                && link
                    .peer
                    .as_ref()
                    .is_some_and(|p| p.process == hello.process)
        });
        match (other.map(|(other, _)| *other), side) {
            (Some(_), Side::Dialled(_)) => return self.close(id, Why::Double, now),
            (Some(other), Side::Accepted(_)) => self.close(other, Why::Double, now),
            (None, _) => {}
        }
        let (process, address, keeps) = (hello.process, hello.address, hello.keeps);
        let watched = hello.watched;
        if let Some(link) = self.links.get_mut(&id) {
            link.peer = Some(Peer::new(hello));
            if let Side::Dialled(_) = side {
                link.memory = self.memories.remove(&process).unwrap_or_default();
            }
        }
        self.members.met(process, address, now);
        match side {
            Side::Accepted(_) => self.targets.met(address),
            Side::Dialled(to) => {
                self.targets.worked(to);
                self.begin_speaking(id, watched, now);
                if keeps {
                    self.ask(id, now);
                }
            }
        }
        self.look_whom_to_dial(now);
    }

    /// Whoever there is a link to is there, whatever was said of it meanwhile: two halves that took
    /// each other for gone become one again.
    pub(super) fn meet_again(&mut self, now: Duration) {
        for link in self.links.values().filter(|link| link.is_speaking()) {
            if let Some(peer) = &link.peer {
                self.members.met(peer.process, peer.address, now);
            }
        }
        self.send_datagrams();
    }

    pub(super) fn send_datagrams(&mut self) {
        for (who, data) in self.members.datagrams() {
            let to = self.links.iter().find(|(_, link)| {
                link.is_speaking() && link.peer.as_ref().is_some_and(|p| p.process == who.process)
            });
            // To who has no link it is lost, as datagrams may be; the link is on its way.
            if let Some((id, _)) = to {
                self.send(*id, Frame::Datagram(data));
            }
        }
    }

    pub(super) fn look_whom_to_dial(&mut self, now: Duration) {
        self.send_datagrams();
        if self.is_leaving {
            return;
        }
        let active = self.members.active().map(|who| who.address);
        let links = self.links.values().filter(|link| !link.is_speaking());
        let here = links.filter_map(|link| link.peer.as_ref().map(|p| p.address));
        let wanted: BTreeSet<SocketAddr> = active.chain(here).collect();
        for to in self.targets.due(wanted, self.options.max_links, now) {
            self.outputs.push_back(Output::Dial(to));
        }
    }
}
