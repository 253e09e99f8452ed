//! One request of an Envoy's: one stream of messages.
//!
//! ```text
//!            head                 verdict: relay, nobody's, answered
//!  Begun ───────────▶ (front) ─────────────────────────────────────────▶ Over
//!                        │ asleep            ▲          │ direct
//!                        ▼                   │          ▼
//!                     Parked ────(wake)──────┘       Inside ──(stream ends)──▶ Over
//! ```
//!
//! Where another server takes this one's place, verdicts are left to the gateway: it has the last word
//! anyway, and by then it is the other server's. See [`crate::Server::leave_to_gateway`].
//!
//! Until the verdict, whatever is not understood ends the stream with an error, because Envoy lets
//! a request pass whose stream ends well. It is told to be patient before its sandbox is woken, so
//! that a processor that is gone is found out soon and a wake may take its time.
//!
//! While a request is inside, its stream is what holds it there. If its sandbox is put to sleep
//! before its answer begins it is woken, or the client is told: Envoy takes an answer at any time.

use std::sync::Arc;

use futures_util::{Stream, stream};
use gateway::{
    Front,
    front::{Admitted, Answer, Verdict, Waiting},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::{
    Options,
    attendance::Attending,
    head::OwnedHead,
    metrics::{Fault, Metrics, Open},
    proto::{FULL_DUPLEX_STREAMED, ProcessingRequest, ProcessingResponse, Said},
    reply,
};

/// What all conversations share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) front: Front,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    /// Cancelled when nothing is decided here any more.
    pub(crate) leaving: CancellationToken,
}

type Reply = Result<ProcessingResponse, Status>;

/// Answers what an Envoy says of one request.
pub(crate) fn converse(
    shared: Arc<Shared>,
    attending: Attending,
    messages: Streaming<ProcessingRequest>,
) -> impl Stream<Item = Reply> + Send {
    let conversation = Conversation {
        _open: shared.metrics.begin(),
        _attending: attending,
        shared,
        messages,
        stage: Stage::Begun,
    };
    stream::unfold(conversation, |mut conversation| async move {
        let reply = conversation.reply().await?;
        Some((reply, conversation))
    })
}

struct Conversation {
    shared: Arc<Shared>,
    messages: Streaming<ProcessingRequest>,
    stage: Stage,
    _open: Open,
    _attending: Attending,
}

enum Stage {
    /// Nothing was said.
    Begun,
    /// Envoy was told to be patient.
    Parked(Box<OwnedHead>, Waiting),
    /// The request is on its way to its sandbox, or there.
    Inside(Box<Inside>),
    /// Nothing more is said.
    Over,
}

struct Inside {
    head: OwnedHead,
    admitted: Admitted,
    /// Its answer has begun.
    is_answered: bool,
}

impl Conversation {
    /// The next thing to say; nothing at the end.
    async fn reply(&mut self) -> Option<Reply> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun => self.first().await,
            Stage::Parked(head, waiting) => {
                let verdict = self.shared.front.wait(&head.head(), waiting).await;
                Some(Ok(self.pronounce(*head, verdict)))
            }
            Stage::Inside(inside) => self.later(inside).await,
            Stage::Over => None,
        }
    }

    async fn first(&mut self) -> Option<Reply> {
        let message = match timeout(self.shared.options.silence, self.messages.message()).await {
            Ok(Ok(message)) => message?,
            Ok(Err(status)) => return Some(Err(self.lost(status))),
            Err(_) => return Some(Err(self.refuse(Fault::Silent, "a stream without a head"))),
        };
        let fault = |fault, why| Some(Err(self.refuse(fault, why)));
        if message.observability_mode {
            return fault(
                Fault::Unsupported,
                "in observability mode nothing is enforced: turn it off",
            );
        }
        let is_duplex = message.protocol_config.is_some_and(|config| {
            [config.request_body_mode, config.response_body_mode].contains(&FULL_DUPLEX_STREAMED)
        });
        if is_duplex {
            return fault(
                Fault::Unsupported,
                "bodies do not go through here: set their processing mode to NONE",
            );
        }
        let said = match message.said {
            Some(Said::RequestHeaders(said)) => said,
            Some(_) => return fault(Fault::OutOfOrder, "the head of the request comes first"),
            None => return fault(Fault::Unknown, "a message of no known kind"),
        };
        let head = match OwnedHead::read(said) {
            Ok(head) => head,
            Err(why) => return fault(Fault::BadHead, &why.to_string()),
        };
        let verdict = self.shared.front.admit(&head.head());
        Some(Ok(self.pronounce(head, verdict)))
    }

    fn pronounce(&mut self, head: OwnedHead, verdict: Verdict) -> ProcessingResponse {
        let shared = self.shared.clone();
        match verdict {
            Verdict::Pass(admitted) => match self.let_pass(head, admitted) {
                Ok(reply) => reply,
                Err(answer) => self.answer(answer),
            },
            Verdict::Wait(_) | Verdict::Answer(_) if shared.leaving.is_cancelled() => {
                shared.metrics.pass_undecided();
                reply::pass_unaddressed(&head.head())
            }
            Verdict::Wait(waiting) => {
                shared.metrics.wait();
                self.stage = Stage::Parked(Box::new(head), waiting);
                reply::patience(shared.front.wake_timeout())
            }
            Verdict::Unaddressed => {
                shared.metrics.pass_unaddressed();
                reply::pass_unaddressed(&head.head())
            }
            Verdict::Answer(answer) => self.answer(answer),
        }
    }

    /// Lets a request pass. To the relay it goes unheld: there it is looked at again, and counted.
    fn let_pass(
        &mut self,
        head: OwnedHead,
        admitted: Admitted,
    ) -> Result<ProcessingResponse, Answer> {
        let shared = &self.shared;
        let direct = match reply::direct_to(shared.options.upstream, &admitted) {
            Some(to) => Some((to, shared.front.masked_host(&head.head(), &admitted)?)),
            None => None,
        };
        shared.metrics.pass();
        let is_direct = direct.is_some();
        let reply = reply::pass(&head.head(), &admitted, direct);
        if is_direct {
            self.stage = Stage::Inside(Box::new(Inside {
                head,
                admitted,
                is_answered: false,
            }));
        }
        Ok(reply)
    }

    fn answer(&self, answer: Answer) -> ProcessingResponse {
        self.shared.metrics.answer(answer.outcome);
        reply::answer(answer)
    }

    /// What comes while a request is inside.
    async fn later(&mut self, mut inside: Box<Inside>) -> Option<Reply> {
        loop {
            let next = self.messages.message();
            let next = match inside.is_answered {
                true => next.await,
                false => {
                    let (front, head) = (&self.shared.front, inside.head.head());
                    match front.answered(&head, &inside.admitted, next).await {
                        Ok(next) => next,
                        Err(answer) => return Some(Ok(self.answer(answer))),
                    }
                }
            };
            let message = match next {
                Ok(message) => message?,
                Err(status) => return Some(Err(self.lost(status))),
            };
            let Some(said) = message.said else {
                let why = "a message of no known kind";
                self.shared.metrics.fault(Fault::Unknown, why);
                // The request goes on without this, and is inside as long as its stream lasts.
                continue;
            };
            inside.is_answered |= matches!(said, Said::ResponseHeaders(_));
            let Some(reply) = reply::as_it_is(&said) else {
                return Some(Err(self.refuse(Fault::OutOfOrder, "the head came twice")));
            };
            self.stage = Stage::Inside(inside);
            return Some(Ok(reply));
        }
    }

    fn refuse(&self, fault: Fault, why: &str) -> Status {
        self.shared.metrics.fault(fault, why);
        match fault {
            Fault::Unsupported => Status::failed_precondition(why),
            Fault::Silent => Status::deadline_exceeded(why),
            Fault::Crowded => Status::resource_exhausted(why),
            Fault::OtherCall
            | Fault::BadHead
            | Fault::OutOfOrder
            | Fault::Unknown
            | Fault::Oversized
            | Fault::Broken => Status::invalid_argument(why),
        }
    }

    /// No message can be read any more. That a client leaves is no fault.
    fn lost(&self, status: Status) -> Status {
        let fault = match status.code() {
            Code::OutOfRange => Some(Fault::Oversized),
            Code::Internal | Code::InvalidArgument | Code::Unimplemented => Some(Fault::Broken),
            _ => None,
        };
        if let Some(fault) = fault {
            self.shared.metrics.fault(fault, status.message());
        }
        status
    }
}
