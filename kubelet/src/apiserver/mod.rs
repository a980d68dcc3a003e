//! What only the API server knows, as the rest of the kubelet asks for it.

pub mod objects;
