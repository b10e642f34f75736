//! The HTTP client of the exporters.

use std::sync::Arc;
use std::time::Duration;

use reqwest::blocking::Client;

/// Longest export, unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise: the standard's 10 s.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A blocking client with rustls on ring, like every other connection of this project. It is
/// made here and not left to the exporter: whatever features others turn on, this one is used.
pub(super) fn blocking(timeout: Duration) -> Result<Client, String> {
    // It starts a runtime of its own, which must not happen inside another one.
    let made = std::thread::spawn(move || {
        Client::builder()
            .timeout(timeout)
            .connect_timeout(CONNECT_MAX.min(timeout))
            .tls_backend_preconfigured(tls()?)
            .build()
            .map_err(|error| error.to_string())
    });
    made.join()
        .unwrap_or_else(|_| Err("the HTTP client panicked".to_owned()))
}

/// Trusts what the system trusts; `SSL_CERT_FILE` names others.
fn tls() -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    // What cannot be read is not trusted; a collector that needs it is then refused by name.
    let (_added, _unreadable) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
