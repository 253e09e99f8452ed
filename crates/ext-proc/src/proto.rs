//! The messages of `envoy.service.ext_proc.v3`, as far as they are used here.
//!
//! Written down by hand: a dozen small messages, against generated types of the whole of Envoy's API.
//! What is not here is skipped when it comes, as protobuf has it; a kind of message that is not known
//! is seen as one without a kind.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// What Envoy says.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingRequest {
    #[prost(oneof = "Said", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) said: Option<Said>,
    /// It does not listen to answers.
    #[prost(bool, tag = "10")]
    pub(crate) observability_mode: bool,
    /// With the first message only.
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol_config: Option<ProtocolConfiguration>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Said {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(Empty),
    #[prost(message, tag = "4")]
    RequestBody(Empty),
    #[prost(message, tag = "5")]
    ResponseBody(Empty),
    #[prost(message, tag = "6")]
    RequestTrailers(Empty),
    #[prost(message, tag = "7")]
    ResponseTrailers(Empty),
}

/// Something of which nothing matters.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub(crate) response_body_mode: i32,
}

/// `BodySendMode`: bodies go through the processor, and nowhere else.
pub(crate) const FULL_DUPLEX_STREAMED: i32 = 4;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// What old Envoys send.
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) raw_value: Vec<u8>,
}

/// What Envoy is told.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingResponse {
    #[prost(oneof = "Told", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) told: Option<Told>,
    #[prost(message, optional, tag = "8")]
    pub(crate) dynamic_metadata: Option<Struct>,
    #[prost(message, optional, tag = "10")]
    pub(crate) override_message_timeout: Option<Duration>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Told {
    #[prost(message, tag = "1")]
    RequestHeaders(HeadersResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(HeadersResponse),
    #[prost(message, tag = "3")]
    RequestBody(Empty),
    #[prost(message, tag = "4")]
    ResponseBody(Empty),
    #[prost(message, tag = "5")]
    RequestTrailers(Empty),
    #[prost(message, tag = "6")]
    ResponseTrailers(Empty),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeadersResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(bool, tag = "5")]
    pub(crate) clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub(crate) append_action: i32,
    #[prost(bool, tag = "4")]
    pub(crate) keep_empty_value: bool,
}

/// `HeaderAppendAction`: what is there already goes.
pub(crate) const OVERWRITE_IF_EXISTS_OR_ADD: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) body: Vec<u8>,
    /// For Envoy's log.
    #[prost(string, tag = "5")]
    pub(crate) details: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(oneof = "Kind", tags = "2, 3, 5")]
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "5")]
    Struct(Struct),
}
