//! gRPC status codes in metrics.

use tonic::Code;

/// The name of a code in gRPC's Go library.
pub fn go_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}
