//! Devices as the engine has them.

use bollard::models::{DeviceMapping, DeviceRequest};
use cri_proto::runtime::v1::{CdiDevice, Device};

use crate::{Error, engine::Connection};

