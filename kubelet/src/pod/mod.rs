//! Pods as the kubelet holds them: who they are.

pub mod identity;
