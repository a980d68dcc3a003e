//! What the garbage collectors ask of the rest of the kubelet.

mod node_images;
mod pod_states;

pub(crate) use self::{node_images::NodeImages, pod_states::WorkerStates};
