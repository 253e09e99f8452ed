//! The product as its users meet it: real processes, real TLS, real files, stock kubectl.

mod commands;
mod config;
mod https;
mod kubectl;
mod kubectl_changes;
mod lifecycle;
mod server;
mod start;
mod watching;
