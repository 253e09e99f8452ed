//! What of a record is kept, and by what it is found.
//!
//! A [`View`] turns a store's record into a value, once, before any lock is taken. With the view
//! come its indexes: an enum whose variants each know the [`Term`]s a value is found by. Asking
//! for an index that does not exist does not compile.

use std::{fmt::Debug, marker::PhantomData};

use model::{KindName, Name, Namespace, Object, Spec, Uid, Version};
use store::{Record, StoreError};

use crate::Names;

/// What of a kind's records a cache keeps.
pub trait View: Send + Sync + 'static {
    /// What readers get, behind an `Arc`.
    type Value: Identified + Debug + Send + Sync + 'static;
    /// By what it is found.
    type Index: Indexes<Self::Value>;
    /// The kind of record.
    const KIND: KindName;

    /// The value of a record. Text that many values have in common can be shared through `names`.
    ///
    /// # Errors
    /// If the record does not fit; it is then left out and counted.
    fn project(record: &Record, names: &mut Names) -> Result<Self::Value, StoreError>;
}

/// Who a cached value is.
pub trait Identified {
    /// Its namespace; none for kinds of the whole installation.
    fn namespace(&self) -> Option<&Namespace>;
    /// Its name.
    fn name(&self) -> &Name;
    /// Its identity for life.
    fn uid(&self) -> Uid;
    /// The version it was read at.
    fn version(&self) -> Version;
}

impl<S: Spec> Identified for Object<S> {
    fn namespace(&self) -> Option<&Namespace> {
        self.metadata.namespace.as_ref()
    }

    fn name(&self) -> &Name {
        &self.metadata.name
    }

    fn uid(&self) -> Uid {
        Self::uid(self)
    }

    fn version(&self) -> Version {
        Self::version(self)
    }
}

/// The indexes of a view: one variant each.
pub trait Indexes<T>: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// All of them. One that is missing here finds nothing.
    const ALL: &'static [Self];

    /// Emits each term by which this index finds the value: none, one or several.
    fn terms<'v>(self, value: &'v T, emit: &mut dyn FnMut(Term<'v>));
}

/// What an index is asked for: a text, within a namespace where the text is a name of such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term<'a> {
    namespace: Option<&'a str>,
    text: &'a str,
}

impl<'a> Term<'a> {
    /// A name within a namespace: two teams' pools of one name are two terms.
    #[must_use]
    pub fn within(namespace: Option<&'a Namespace>, text: &'a str) -> Self {
        Self {
            namespace: namespace.map(Namespace::as_str),
            text,
        }
    }
}

impl<'a> From<&'a str> for Term<'a> {
    fn from(text: &'a str) -> Self {
        Self {
            namespace: None,
            text,
        }
    }
}

impl<'a> From<(&'a Namespace, &'a Name)> for Term<'a> {
    fn from((namespace, name): (&'a Namespace, &'a Name)) -> Self {
        Self::within(Some(namespace), name.as_str())
    }
}

/// For views that are only ever asked by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoIndex {}

impl<T> Indexes<T> for NoIndex {
    const ALL: &'static [Self] = &[];

    fn terms<'v>(self, _: &'v T, _: &mut dyn FnMut(Term<'v>)) {
        match self {}
    }
}

/// The view that keeps whole objects. Another crate can bring its own indexes.
#[derive(Debug)]
pub struct Full<S, I>(PhantomData<fn() -> (S, I)>);

/// How a kind's objects are made small for keeping: text that repeats so much that it pays to
/// keep it once, room that decoding left over.
pub trait Share: Spec {
    /// Replaces repeated text by shared text, gives back room that is not needed.
    fn share(_object: &mut Object<Self>, _names: &mut Names) {}
}

impl<S, I> View for Full<S, I>
where
    S: Share + Debug,
    S::Status: Debug,
    I: Indexes<Object<S>>,
{
    type Value = Object<S>;
    type Index = I;
    const KIND: KindName = S::KIND;

    fn project(record: &Record, names: &mut Names) -> Result<Object<S>, StoreError> {
        let mut object = record.decode()?;
        if let Some(namespace) = &mut object.metadata.namespace {
            names.share_namespace(namespace);
        }
        S::share(&mut object, names);
        Ok(object)
    }
}
