//! The gRPC APIs of a Kubernetes node: messages, clients and servers, generated from this crate's
//! `.proto` files.

#![forbid(unsafe_code)]

pub mod server;

/// CRI, the interface between the kubelet and a container runtime.
pub mod runtime {
    /// The Container Runtime Interface, v1.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}

/// CSI, the interface between the kubelet and storage drivers.
pub mod csi {
    /// The Container Storage Interface, v1: the Identity and Node services.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// Plugin registration, v1, the interface between the kubelet and its plugins.
#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file documents what needs it"
)]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// The device plugin API, the interface between the kubelet and programs that offer devices.
pub mod deviceplugin {
    /// Its version v1beta1.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}

/// The interface between the kubelet and drivers for dynamic resource allocation.
pub mod dra {
    /// Its version 1.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
}

/// The interface between the kubelet and drivers that know the health of their devices.
pub mod dra_health {
    /// Its version v1alpha1.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}

/// The pod resources API, the interface between the kubelet and monitoring agents.
pub mod podresources {
    /// Its version 1.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1 {
        tonic::include_proto!("v1");
    }

    /// Its version v1alpha1, for agents that know no later one.
    #[allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the .proto file documents what needs it"
    )]
    pub mod v1alpha1 {
        tonic::include_proto!("podresources/v1alpha1");
    }
}

/// The protocols of gRPC itself.
pub mod grpc {
    /// Health checking, for gRPC probes of containers.
    pub mod health {
        /// The protocol's version 1.
        #[allow(
            missing_docs,
            clippy::all,
            clippy::allow_attributes_without_reason,
            reason = "generated; the .proto file documents what needs it"
        )]
        pub mod v1 {
            tonic::include_proto!("grpc.health.v1");
        }
    }
}

/// The encoded `google.protobuf.FileDescriptorSet` of every `.proto` file.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
