//! `process.Process`: the programs of a sandbox.
//!
//! ```text
//! started ──▶ running ──▶ exited, output still open ──▶ ended (kept 30 s) ──▶ forgotten
//! ```
//!
//! A program has ended when it has exited and its output is closed; who it leaves behind may hold
//! that open. A signal sent through here, and the timeout of `Start`, end the waiting: after them
//! what is in the pipe is read and the rest is left.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::{io::Errno, process::Pid};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, unix::AsyncFd},
    net::unix::pipe,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use wire::{
    connect::{Code, Error},
    process::{
        Empty, EndEvent, ListRequest, ListResponse, ProcessConfig, ProcessInfo, ProcessInput,
        ProcessRequest, ProcessSelector, Selected, SendInputRequest, SendSignalRequest, Signal,
        StartRequest, StreamInputRequest, UpdateRequest,
    },
};

use crate::{
    children::{Exit, signal_name},
    fan::{Event, Fan, Listener, Source},
    output::Output as KeptOutput,
    paths, poll,
    rpc::{Call, Inputs},
    server::Agent,
    spawn::{self, Ends, Io, Spawned},
};

/// What is read from a pipe at once: more for a program that fills it, so that one that talks much
/// is not slowed down and one that does not costs little.
const FIRST_CHUNK: usize = 8 * 1024;
const LARGEST_CHUNK: usize = 128 * 1024;
/// What is left of a buffer that is too small to read into.
const LEAST_ROOM: usize = 2 * 1024;
/// What the pipe of a program that talks much may hold.
const LARGE_PIPE: usize = 512 * 1024;
const PTY_CHUNK: usize = 16 * 1024;
/// What may still be read after the waiting for output was ended: what a pipe holds.
const LEFT_IN_PIPE: usize = LARGE_PIPE;
/// For how long a late `Connect` hears how it ended.
const KEEP_ENDED: Duration = Duration::from_secs(30);

/// The programs.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    running: BTreeMap<u32, Arc<Process>>,
    ended: BTreeMap<u32, Arc<Process>>,
    /// Whether the sandbox's start command was started.
    booted: bool,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    system_pid: Pid,
    config: ProcessConfig,
    tag: Option<String>,
    fan: Fan,
    input: Input,
    /// Cancelled when its output is no longer waited for once it has exited.
    hurry: CancellationToken,
    /// Cancelled when it has ended.
    over: CancellationToken,
}

#[derive(Debug)]
enum Input {
    /// None once it is closed, and from the start where none was asked for.
    Pipe(tokio::sync::Mutex<Option<pipe::Sender>>),
    Pty(Arc<AsyncFd<OwnedFd>>, tokio::sync::Mutex<()>),
}

impl Processes {
    fn find(&self, selector: Option<ProcessSelector>) -> Result<Arc<Process>, Error> {
        let selected = selector.unwrap_or_default().one()?;
        let tables = self.0.lock();
        pick(&tables.running, &selected).ok_or_else(|| not_found(&selected))
    }

    fn find_even_ended(&self, selector: Option<ProcessSelector>) -> Result<Arc<Process>, Error> {
        let selected = selector.unwrap_or_default().one()?;
        let tables = self.0.lock();
        pick(&tables.running, &selected)
            .or_else(|| pick(&tables.ended, &selected))
            .ok_or_else(|| not_found(&selected))
    }
}

fn pick(table: &BTreeMap<u32, Arc<Process>>, selected: &Selected) -> Option<Arc<Process>> {
    match selected {
        Selected::Pid(pid) => table.get(pid).cloned(),
        Selected::Tag(tag) => table
            .values()
            .find(|p| p.tag.as_ref() == Some(tag))
            .cloned(),
    }
}

fn not_found(selected: &Selected) -> Error {
    let message = match selected {
        Selected::Pid(pid) => format!("process with pid {pid} not found"),
        Selected::Tag(tag) => format!("process with tag {tag} not found"),
    };
    Error::new(Code::NotFound, message)
}

pub(crate) async fn list(
    agent: Arc<Agent>,
    _: Call,
    _: ListRequest,
) -> Result<ListResponse, Error> {
    let tables = agent.processes.0.lock();
    let processes = tables.running.values().map(|process| ProcessInfo {
        config: Some(process.config.clone()),
        pid: process.pid,
        tag: process.tag.clone(),
    });
    Ok(ListResponse {
        processes: processes.collect(),
    })
}

pub(crate) async fn start(
    agent: Arc<Agent>,
    call: Call,
    request: StartRequest,
) -> Result<Listener<Event>, Error> {
    if call.boot && agent.processes.0.lock().booted {
        return Err(Error::new(
            Code::AlreadyExists,
            "the start command was started before",
        ));
    }
    let user = agent.user(call.username.as_deref())?;
    let config = request.process.unwrap_or_default();
    let cwd = config.cwd.as_deref().unwrap_or_default();
    let cwd = paths::resolve(cwd.as_bytes(), &user, &agent.settings.default_workdir())?;
    if !cwd.is_dir() {
        let why = if cwd.exists() {
            "is not a directory"
        } else {
            "does not exist"
        };
        return Err(Error::new(
            Code::InvalidArgument,
            format!("cwd '{}' {why}", cwd.display()),
        ));
    }
    let ends = match request.pty {
        Some(pty) => Ends::Pty(pty.size),
        None => Ends::Pipes {
            stdin: request.stdin.unwrap_or(true),
        },
    };
    let env = agent.settings.env();
    let spawned = spawn::spawn(&agent.children, &config, &user, &cwd, env, ends)
        .map_err(|why| spawn_error(&config.cmd, &why))?;
    if call.boot {
        agent.processes.0.lock().booted = true;
    }
    adopt(&agent, spawned, config, request.tag, &call)
        .map_err(|why| Error::new(Code::Internal, format!("attach to the process: {why}")))
}

fn spawn_error(cmd: &str, why: &io::Error) -> Error {
    let code = match why.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC) => {
            Code::ResourceExhausted
        }
        _ => Code::InvalidArgument,
    };
    Error::new(code, format!("error starting process '{cmd}': {why}"))
}

/// Takes a started program into the table and sets its tasks going.
fn adopt(
    agent: &Arc<Agent>,
    spawned: Spawned,
    config: ProcessConfig,
    tag: Option<String>,
    call: &Call,
) -> io::Result<Listener<Event>> {
    let stop = CancellationToken::new();
    let mut outputs = Vec::new();
    let input = match spawned.io {
        Io::Pipes {
            stdin,
            stdout,
            stderr,
        } => {
            outputs.push(Output::Pipe(
                Source::Stdout,
                pipe::Receiver::from_owned_fd(stdout)?,
            ));
            outputs.push(Output::Pipe(
                Source::Stderr,
                pipe::Receiver::from_owned_fd(stderr)?,
            ));
            let stdin = stdin.map(pipe::Sender::from_owned_fd).transpose()?;
            Input::Pipe(tokio::sync::Mutex::new(stdin))
        }
        Io::Pty(fd) => {
            let flags = rustix::fs::fcntl_getfl(&fd)?;
            rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
            let terminal = Arc::new(poll::watched(fd)?);
            outputs.push(Output::Pty(Arc::clone(&terminal)));
            Input::Pty(terminal, tokio::sync::Mutex::default())
        }
    };
    let pid = spawned.pid.as_raw_nonzero().get().unsigned_abs();
    let process = Arc::new(Process {
        pid,
        system_pid: spawned.pid,
        config,
        tag,
        fan: Fan::default(),
        input,
        hurry: CancellationToken::new(),
        over: CancellationToken::new(),
    });
    let listener = process.fan.listen(pid);
    if call.boot {
        let output = KeptOutput::new(Arc::clone(&agent.clock));
        agent.tasks.spawn(output.keep(process.fan.listen(pid)));
    }
    {
        let mut tables = agent.processes.0.lock();
        // The number may have been that of another one before.
        tables.ended.remove(&pid);
        tables.running.insert(pid, Arc::clone(&process));
    }
    let readers: Vec<_> = outputs
        .into_iter()
        .map(|output| {
            agent
                .tasks
                .spawn(output.read(Arc::clone(&process), stop.clone()))
        })
        .collect();
    let life = Life {
        agent: Arc::clone(agent),
        process,
        stop,
        deadline: call.deadline,
    };
    agent.tasks.spawn(life.watch(spawned.exit, readers));
    Ok(listener)
}

/// Sees a program through to its end.
struct Life {
    agent: Arc<Agent>,
    process: Arc<Process>,
    stop: CancellationToken,
    deadline: Option<Instant>,
}

impl Life {
    async fn watch(
        self,
        mut exit: tokio::sync::oneshot::Receiver<Exit>,
        readers: Vec<tokio::task::JoinHandle<()>>,
    ) {
        let process = &self.process;
        let exit = tokio::select! {
            exit = &mut exit => exit,
            () = until(self.deadline) => {
                process.hurry.cancel();
                self.agent.children.signal(process.system_pid, rustix::process::Signal::KILL);
                exit.await
            }
        };
        let output = async {
            for reader in readers {
                reader.await.ok();
            }
        };
        tokio::pin!(output);
        tokio::select! {
            () = &mut output => {}
            () = async { tokio::select! {
                () = process.hurry.cancelled() => {}
                () = until(self.deadline) => {}
            } } => {
                self.stop.cancel();
                output.await;
            }
        }
        process.over.cancel();
        {
            let mut tables = self.agent.processes.0.lock();
            tables.running.remove(&process.pid);
            tables.ended.insert(process.pid, Arc::clone(process));
        }
        process.fan.end(end_event(exit.unwrap_or(Exit::Lost))).await;
        tokio::time::sleep(KEEP_ENDED).await;
        let mut tables = self.agent.processes.0.lock();
        if tables
            .ended
            .get(&process.pid)
            .is_some_and(|kept| Arc::ptr_eq(kept, process))
        {
            tables.ended.remove(&process.pid);
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn end_event(exit: Exit) -> EndEvent {
    let (exit_code, exited, status) = match exit {
        Exit::Code(code) => (code, true, format!("exit status {code}")),
        Exit::Signal { number, dumped } => {
            let dumped = if dumped { " (core dumped)" } else { "" };
            (
                -1,
                false,
                format!("signal: {}{dumped}", signal_name(number)),
            )
        }
        Exit::Lost => (-1, false, "reaped by another process".to_owned()),
    };
    let error = (exit_code != 0).then(|| status.clone());
    EndEvent {
        exit_code,
        exited,
        status,
        error,
    }
}

/// One source of output.
enum Output {
    Pipe(Source, pipe::Receiver),
    Pty(Arc<AsyncFd<OwnedFd>>),
}

impl Output {
    async fn read(mut self, process: Arc<Process>, stop: CancellationToken) {
        let source = match &self {
            Self::Pipe(source, _) => *source,
            Self::Pty(_) => Source::Pty,
        };
        let mut buffer = BytesMut::new();
        let mut chunk = FIRST_CHUNK;
        let mut left = LEFT_IN_PIPE;
        loop {
            if buffer.capacity() < LEAST_ROOM {
                buffer.reserve(chunk);
            }
            let room = buffer.capacity();
            let read = tokio::select! {
                biased;
                read = self.read_some(&mut buffer) => read,
                () = stop.cancelled() => return,
            };
            // An error of a pipe or a terminal means that nothing more will come.
            let Ok(read @ 1..) = read else { return };
            if read == room && chunk < LARGEST_CHUNK {
                chunk *= 4;
                self.widen();
            }
            process.fan.data(source, buffer.split().freeze()).await;
            if stop.is_cancelled() {
                left = left.saturating_sub(read);
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// Has the kernel keep more of what a program prints. It may refuse: then it keeps less.
    fn widen(&self) {
        if let Self::Pipe(_, pipe) = self {
            rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE).ok();
        }
    }

    async fn read_some(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(_, pipe) => pipe.read_buf(buffer).await,
            Self::Pty(terminal) => {
                let mut room = [0; PTY_CHUNK];
                let read = terminal
                    .async_io(tokio::io::Interest::READABLE, |fd| {
                        Ok(rustix::io::read(fd, &mut room)?)
                    })
                    .await?;
                buffer.extend_from_slice(&room[..read]);
                Ok(read)
            }
        }
    }
}

impl Process {
    async fn send(&self, input: ProcessInput) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::new(Code::Internal, why));
        match (&self.input, input.stdin, input.pty) {
            (_, None, None) => Err(Error::new(
                Code::InvalidArgument,
                "input is empty: give stdin or pty",
            )),
            (_, Some(_), Some(_)) => Err(Error::new(
                Code::InvalidArgument,
                "input has both stdin and pty: give one",
            )),
            (Input::Pipe(_), None, Some(_)) => refuse("pty input for a process without a pty"),
            (Input::Pty(..), Some(_), None) => refuse("stdin input for a process with a pty"),
            (Input::Pipe(pipe), Some(bytes), None) => {
                let mut pipe = pipe.lock().await;
                let Some(open) = pipe.as_mut() else {
                    return refuse("stdin not enabled or closed");
                };
                self.unless_over(open.write_all(&bytes)).await
            }
            (Input::Pty(terminal, turn), None, Some(bytes)) => {
                let _turn = turn.lock().await;
                self.unless_over(write_terminal(terminal, bytes)).await
            }
        }
    }

    async fn unless_over(&self, write: impl Future<Output = io::Result<()>>) -> Result<(), Error> {
        let written = tokio::select! {
            written = write => written,
            () = self.over.cancelled() => Err(ErrorKind::BrokenPipe.into()),
        };
        written
            .map_err(|why| Error::new(Code::Internal, format!("error writing to process: {why}")))
    }
}

async fn write_terminal(terminal: &AsyncFd<OwnedFd>, mut bytes: Bytes) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = terminal
            .async_io(tokio::io::Interest::WRITABLE, |fd| {
                Ok(rustix::io::write(fd, &bytes)?)
            })
            .await?;
        bytes = bytes.split_off(written);
    }
    Ok(())
}

pub(crate) async fn connect(
    agent: Arc<Agent>,
    _: Call,
    request: ProcessRequest,
) -> Result<Listener<Event>, Error> {
    let process = agent.processes.find_even_ended(request.process)?;
    Ok(process.fan.listen(process.pid))
}

pub(crate) async fn update(
    agent: Arc<Agent>,
    _: Call,
    request: UpdateRequest,
) -> Result<Empty, Error> {
    let process = agent.processes.find(request.process)?;
    if let Some(size) = request.pty.and_then(|pty| pty.size) {
        let Input::Pty(terminal, _) = &process.input else {
            return Err(Error::new(Code::Internal, "tty not assigned to process"));
        };
        spawn::resize(terminal.get_ref(), size)
            .map_err(|why| Error::new(Code::Internal, format!("error resizing tty: {why}")))?;
    }
    Ok(Empty {})
}

pub(crate) async fn send_input(
    agent: Arc<Agent>,
    _: Call,
    request: SendInputRequest,
) -> Result<Empty, Error> {
    let process = agent.processes.find(request.process)?;
    process.send(request.input.unwrap_or_default()).await?;
    Ok(Empty {})
}

pub(crate) async fn stream_input(
    agent: Arc<Agent>,
    _: Call,
    mut inputs: Inputs<StreamInputRequest>,
) -> Result<Empty, Error> {
    let mut process = None;
    while let Some(message) = inputs.next().await? {
        match (message.start, message.data, message.keepalive) {
            (Some(start), None, None) => process = Some(agent.processes.find(start.process)?),
            (None, Some(data), None) => {
                let process = process.as_ref().ok_or_else(|| {
                    Error::new(
                        Code::InvalidArgument,
                        "data before start: name the process first",
                    )
                })?;
                process.send(data.input.unwrap_or_default()).await?;
            }
            (None, None, Some(_)) => {}
            (None, None, None)
            | (Some(_), Some(_), _)
            | (Some(_), _, Some(_))
            | (_, Some(_), Some(_)) => {
                return Err(Error::new(
                    Code::InvalidArgument,
                    "a message must be one of start, data and keepalive",
                ));
            }
        }
    }
    Ok(Empty {})
}

pub(crate) async fn close_stdin(
    agent: Arc<Agent>,
    _: Call,
    request: ProcessRequest,
) -> Result<Empty, Error> {
    let process = agent.processes.find(request.process)?;
    match &process.input {
        Input::Pipe(pipe) => {
            pipe.lock().await.take();
            Ok(Empty {})
        }
        Input::Pty(..) => Err(Error::new(
            Code::FailedPrecondition,
            "cannot close stdin of a process with a pty: send Ctrl+D (0x04) instead",
        )),
    }
}

pub(crate) async fn send_signal(
    agent: Arc<Agent>,
    _: Call,
    request: SendSignalRequest,
) -> Result<Empty, Error> {
    let signal = match Signal::try_from(request.signal) {
        Ok(Signal::Kill) => rustix::process::Signal::KILL,
        Ok(Signal::Term) => rustix::process::Signal::TERM,
        Ok(Signal::Unspecified) | Err(_) => {
            return Err(Error::new(
                Code::Unimplemented,
                format!(
                    "invalid signal: {}: only SIGKILL and SIGTERM can be sent",
                    request.signal
                ),
            ));
        }
    };
    let process = agent.processes.find(request.process)?;
    // One that has exited while its output is held open is not signalled, but no longer waited for.
    agent.children.signal(process.system_pid, signal);
    process.hurry.cancel();
    Ok(Empty {})
}
