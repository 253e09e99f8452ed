//! What only our own processes may say of a sandbox, and how it is told from what others write.
//!
//! In a cluster whoever may write objects of a namespace writes past our APIs: an id that is another's,
//! an owner, a pool whose member it would be. So what a delivery is (whose, under which id, from which
//! pool) is signed by who writes it, and read back from what was signed:
//!
//! ```text
//!  spec of ours ──write──▶ object: spec + annotation (uid, what we say, signature)
//!                             │ whatever others make of the spec
//!                             ▼ read
//!  signed for this object ──▶ those fields as they were signed; others' word is noted
//!  not signed             ──▶ without those fields; one that has a workload is its namespace's
//! ```
//!
//! This is done where objects become records and back, so every reader (routes, caches, the APIs, control)
//! and every writer has it, and none needs to know. A store without a [`Vouch`] takes all for ours, as on one
//! machine, where nobody else writes.
//!
//! A signature is for one object: its namespace, its name and its uid. Who creates an object does not know
//! its uid yet, so a first signature is without, and stands until something else is to be said, as by a claim.
//! It would let its holder make the same object again under its own name once it is gone: so who starts
//! sandboxes looks at those once more ([`Standing::Made`]).
//!
//! It is for one delivery, too: the count of deliveries (`spec.epoch`) is signed, and a proof for another count
//! is no proof. An API server lets nobody lower the count, so what was said of an earlier delivery cannot be
//! written back over a later one; who raises it shuts himself out of his own sandbox.

use std::{collections::BTreeMap, fmt::Debug};

use model::{
    Epoch, Metadata, Name, SandboxId, Timestamp, Uid,
    lifecycle::Phase,
    sandbox::{Access, GivenBack, Lease, Owner},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use store::Standing;

/// Holds what we say of a sandbox, signed.
const PROOF: &str = "dormouse.dev/proof";
/// Tells readers of a record what was not believed. It is in no object.
const NOTE: &str = "dormouse.dev/disbelieved";

/// Signs for the processes of one installation, and knows their signature.
pub trait Vouch: Send + Sync + Debug {
    /// A signature of this text.
    fn sign(&self, text: &str) -> Box<str>;

    /// Whether this is the signature of that text.
    fn knows(&self, text: &str, signature: &str) -> bool;
}

/// How the record with this metadata stands, as a store that vouches has read it.
#[must_use]
pub fn standing(meta: &Metadata) -> Standing {
    let Some(note) = Note::of(meta) else {
        return match meta.annotations.contains_key(PROOF) {
            true => Standing::Made,
            false => Standing::Ours,
        };
    };
    let fields = note.fields.keys().map(|name| format!("spec.{name}"));
    match note.proven {
        true => Standing::Altered(fields.collect()),
        false => Standing::Unproven(fields.collect()),
    }
}

/// What we say: the fields of a spec that are ours to write, and of which delivery they are.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ours {
    epoch: Epoch,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<SandboxId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<Access>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<Lease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given_back: Option<GivenBack>,
}

/// The names of those that are put back as they were signed. The count is not: it is what they are signed for.
const FIELDS: [&str; 7] = [
    "pool",
    "owner",
    "sandboxId",
    "access",
    "claimedAt",
    "lease",
    "givenBack",
];

/// Which delivery a spec is of, whatever else it says.
#[derive(Deserialize)]
struct Delivery {
    #[serde(default)]
    epoch: Epoch,
}

#[derive(Serialize, Deserialize)]
struct Proof<'j> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<Uid>,
    signature: Box<str>,
    #[serde(borrow)]
    says: &'j RawValue,
}

/// What a reader leaves in a record about what it did not believe.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    proven: bool,
    /// As they are in the object.
    fields: BTreeMap<String, Value>,
}

impl Note {
    fn of(meta: &Metadata) -> Option<Self> {
        serde_json::from_str(meta.annotations.get(NOTE)?).ok()
    }
}

/// What is signed: what we say, and of which object.
fn signed_text(meta: &Metadata, uid: Option<Uid>, says: &str) -> String {
    let namespace = meta.namespace.as_ref().map_or("", AsRef::as_ref);
    let uid = uid.map(|uid| uid.to_string()).unwrap_or_default();
    // None but the last can have a line break.
    format!("Sandbox\n{namespace}\n{}\n{uid}\n{says}", meta.name)
}

/// Signs what the spec of a sandbox says, into the annotations it is written with. Answers the spec to
/// write, if that is another one.
pub(crate) fn sign(
    vouch: &dyn Vouch,
    meta: &mut Metadata,
    uid: Option<Uid>,
    spec: &str,
) -> Result<Option<String>, serde_json::Error> {
    let note = Note::of(meta);
    meta.annotations.remove(NOTE);
    let ours: Ours = serde_json::from_str(spec)?;
    let first = meta.annotations.remove(PROOF);
    let first = first
        .filter(|first| proven(vouch, meta, ours.epoch, first).is_some_and(|said| said == ours));
    let proof = match first {
        Some(first) => first,
        None => signed(vouch, meta, uid, &ours)?.into(),
    };
    meta.annotations.insert(PROOF, proof);
    // An API server lets nobody take a pool out of a spec. It counts for nothing where it stands.
    match note.and_then(|mut note| note.fields.remove("pool")) {
        Some(pool) if ours.pool.is_none() => {
            let mut whole: BTreeMap<String, Value> = serde_json::from_str(spec)?;
            whole.insert("pool".into(), pool);
            serde_json::to_string(&whole).map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

fn signed(
    vouch: &dyn Vouch,
    meta: &Metadata,
    uid: Option<Uid>,
    ours: &Ours,
) -> Result<String, serde_json::Error> {
    let says = RawValue::from_string(serde_json::to_string(ours)?)?;
    let signature = vouch.sign(&signed_text(meta, uid, says.get()));
    let says = &*says;
    serde_json::to_string(&Proof {
        uid,
        signature,
        says,
    })
}

/// Reads the spec of a sandbox as far as it can be believed. Answers it, if that is another one, and leaves a
/// note in the metadata where something was not.
pub(crate) fn believe(
    vouch: &dyn Vouch,
    meta: &mut Metadata,
    phase: Option<&str>,
    spec: &str,
) -> Result<Option<String>, serde_json::Error> {
    meta.annotations.remove(NOTE);
    let proof = meta.annotations.remove(PROOF);
    let epoch = serde_json::from_str::<Delivery>(spec)?.epoch;
    let said = proof.as_deref();
    let said = said.and_then(|proof| proven(vouch, meta, epoch, proof));
    let proven = said.is_some();
    if let Some(first) = proof.filter(|proof| proven && is_first(proof)) {
        // As long as nothing else is to be said, it stays.
        meta.annotations.insert(PROOF, first);
    }
    let said = said.unwrap_or_else(|| unproven(meta, phase));
    let found = serde_json::from_str::<Ours>(spec);
    if proven && found.is_ok_and(|found| found == said) {
        return Ok(None);
    }
    let mut whole: BTreeMap<String, Value> = serde_json::from_str(spec)?;
    let believed = serde_json::to_value(&said)?;
    let mut fields = BTreeMap::new();
    for name in FIELDS {
        let believed = believed.get(name);
        let found = match believed {
            Some(value) => whole.insert(name.into(), value.clone()),
            None => whole.remove(name),
        };
        let found = found.unwrap_or_default();
        let is_gone = found.is_null();
        if &found != believed.unwrap_or(&Value::Null) && (proven || !is_gone) {
            fields.insert(name.to_owned(), found);
        }
    }
    if proven && fields.is_empty() {
        return Ok(None);
    }
    let note = Note { proven, fields };
    meta.annotations.insert(NOTE, serde_json::to_string(&note)?);
    serde_json::to_string(&whole).map(Some)
}

/// What was signed for this object and this delivery.
fn proven(vouch: &dyn Vouch, meta: &Metadata, epoch: Epoch, proof: &str) -> Option<Ours> {
    let proof: Proof<'_> = serde_json::from_str(proof).ok()?;
    if proof.uid.is_some() && proof.uid != meta.uid {
        return None;
    }
    let text = signed_text(meta, proof.uid, proof.says.get());
    if !vouch.knows(&text, &proof.signature) {
        return None;
    }
    let said: Ours = serde_json::from_str(proof.says.get()).ok()?;
    (said.epoch == epoch).then_some(said)
}

/// Whether a proof was signed by who created the object.
fn is_first(proof: &str) -> bool {
    serde_json::from_str::<Proof<'_>>(proof).is_ok_and(|proof| proof.uid.is_none())
}

/// What is believed of an object that nobody of ours has signed: if something runs for it, that is its
/// namespace's, and counts for it.
fn unproven(meta: &Metadata, phase: Option<&str>) -> Ours {
    let runs = phase.is_some_and(|phase| phase != Phase::Pending.as_str());
    let team = meta.namespace.clone().filter(|_| runs);
    Ours {
        owner: team.map(|team| Owner {
            team,
            user: None,
            key: None,
        }),
        ..Ours::default()
    }
}
