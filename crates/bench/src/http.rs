//! The few calls that are measured, over a connection each: as little of a client as can be, so
//! that the server is what is measured.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::Result;

/// Where the API is, and with which key.
#[derive(Clone, Debug)]
pub struct Api {
    /// Host and port.
    pub address: String,
    /// The API key.
    pub key: String,
}

/// A sandbox that was made.
#[derive(Debug)]
pub struct Made {
    id: String,
    token: String,
}

impl Made {
    /// Its id, which is the name of its record too.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    fn read(body: &Value) -> Result<Self> {
        let text = |field: &str| {
            body[field]
                .as_str()
                .map(str::to_owned)
                .ok_or("no such field")
        };
        Ok(Self {
            id: text("sandboxID")?,
            token: text("envdAccessToken")?,
        })
    }
}

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Api {
    /// Makes a sandbox.
    pub fn create(&self) -> Result<Made> {
        self.create_as(br#"{"templateID":"base"}"#)
    }

    /// Makes one from a template or a pool.
    pub fn create_from(&self, name: &str) -> Result<Made> {
        self.create_as(format!(r#"{{"templateID":"{name}"}}"#).as_bytes())
    }

    /// Makes one that traffic wakes.
    pub fn create_sleeper(&self) -> Result<Made> {
        self.create_as(
            br#"{"templateID":"base","timeout":3600,"autoPause":true,"autoResume":{"enabled":true}}"#,
        )
    }

    fn create_as(&self, body: &[u8]) -> Result<Made> {
        let (status, body) = self.call("POST", "/v2/sandboxes", body)?;
        if status != 201 {
            return Err(format!("create: {status} {}", String::from_utf8_lossy(&body)).into());
        }
        Made::read(&serde_json::from_slice(&body)?)
    }

    /// Puts it to sleep.
    pub fn pause(&self, made: &Made) -> Result<()> {
        let (status, _) = self.call("POST", &format!("/sandboxes/{}/pause", made.id), b"")?;
        expect(status, 204)
    }

    /// Asks the agent through the gateway, once.
    pub fn answer(&self, made: &Made) -> Result<()> {
        expect(Self::end_answer(self.begin_answer(made)?)?, 204)
    }

    /// Asks the agent through the gateway, and waits for nothing.
    pub fn begin_answer(&self, made: &Made) -> Result<TcpStream> {
        self.begin("GET", "/health", &agent_headers(made, ""), b"")
    }

    /// The status of what was asked.
    pub fn end_answer(stream: TcpStream) -> Result<u16> {
        Ok(end(stream)?.0)
    }

    /// Makes copies of a sandbox.
    pub fn fork(&self, source: &Made, count: usize) -> Result<Vec<Made>> {
        let body = format!(r#"{{"count":{count},"timeout":300}}"#);
        let path = format!("/sandboxes/{}/fork", source.id);
        let (status, body) = self.call("POST", &path, body.as_bytes())?;
        if status != 201 {
            return Err(format!("fork: {status} {}", String::from_utf8_lossy(&body)).into());
        }
        let body: Value = serde_json::from_slice(&body)?;
        let all = body.as_array().ok_or("not a list")?.iter();
        all.map(|result| Made::read(&result["sandbox"])).collect()
    }

    /// Ends it.
    pub fn kill(&self, made: &Made) -> Result<()> {
        let (status, _) = self.call("DELETE", &format!("/sandboxes/{}", made.id), b"")?;
        expect(status, 204)
    }

    /// Lists all of them.
    pub fn list(&self) -> Result<()> {
        let (status, _) = self.call("GET", "/v2/sandboxes", b"")?;
        expect(status, 200)
    }

    /// Lists ten of them.
    pub fn page(&self) -> Result<()> {
        let (status, _) = self.call("GET", "/v2/sandboxes?limit=10", b"")?;
        expect(status, 200)
    }

    /// Whether the server answers.
    pub fn health(&self) -> Result<()> {
        let (status, _) = self.call("GET", "/health", b"")?;
        expect(status, 204)
    }

    /// Asks the agent through the gateway until it answers.
    pub fn first_answer(&self, made: &Made) -> Result<()> {
        let begun = Instant::now();
        loop {
            let (status, _) = self.send("GET", "/health", &agent_headers(made, ""), b"")?;
            if status == 204 {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return expect(status, 204);
            }
        }
    }

    /// Runs `echo` inside, and reads its output.
    pub fn run_echo(&self, made: &Made) -> Result<()> {
        let message = br#"{"process":{"cmd":"/bin/echo","args":["hello"]},"stdin":false}"#;
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        body.extend_from_slice(message);
        let more = "content-type: application/connect+json\r\nconnect-protocol-version: 1\r\n";
        let headers = agent_headers(made, more);
        let (status, answer) = self.send("POST", "/process.Process/Start", &headers, &body)?;
        expect(status, 200)?;
        // "hello\n" in base64.
        let heard = answer.windows(8).any(|window| window == b"aGVsbG8K");
        if heard {
            Ok(())
        } else {
            Err("no output".into())
        }
    }

    fn call(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let headers = format!(
            "host: {}\r\nx-api-key: {}\r\ncontent-type: application/json\r\n",
            self.address, self.key
        );
        self.send(method, path, &headers, body)
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        end(self.begin(method, path, headers, body)?)
    }

    fn begin(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        stream.write_all(&request)?;
        Ok(stream)
    }
}

fn end(mut stream: TcpStream) -> Result<(u16, Vec<u8>)> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer.get(9..12).ok_or("no answer")?;
    let status = std::str::from_utf8(status)?.parse()?;
    let head = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let body = answer.split_off(head.ok_or("no end of the head")? + 4);
    Ok((status, body))
}

fn agent_headers(made: &Made, more: &str) -> String {
    format!(
        "host: localhost\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {}\r\n{more}",
        made.id, made.token
    )
}

fn expect(status: u16, wanted: u16) -> Result<()> {
    if status == wanted {
        Ok(())
    } else {
        Err(format!("{status} instead of {wanted}").into())
    }
}
