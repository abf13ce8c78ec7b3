//! Objects as JSON. The code that decodes and encodes the generated types is large, so that it is
//! compiled once, here, instead of in each crate that reads a kind. Every kind that a component
//! reads or writes is listed below.

use k8s_openapi::{
    Resource as _,
    api::{
        admissionregistration::v1 as admissionregistration, apps::v1 as apps,
        authentication::v1 as authentication, authorization::v1 as authorization,
        autoscaling::v1 as autoscaling_v1, autoscaling::v2 as autoscaling, batch::v1 as batch,
        certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
        discovery::v1 as discovery, events::v1 as events, networking::v1 as networking,
        node::v1 as node, policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource,
        scheduling::v1 as scheduling, storage::v1 as storage,
        storagemigration::v1beta1 as storagemigration,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};
use kube::api::{DynamicObject, PartialObjectMeta};
use machinery::schema;
use serde::de::DeserializeOwned;
use serde_json::Error;

use crate::lenient;

/// A type that is decoded from an object's JSON. A projection decodes the generated type and keeps
/// only what it needs.
pub trait FromJson: Sized {
    /// Decodes an object by [`lenient`].
    fn from_json(text: &str) -> Result<Self, Error>;

    /// Decodes an object from a value.
    fn from_value(value: &serde_json::Value) -> Result<Self, Error> {
        Self::from_json(&value.to_string())
    }
}

/// An object that is sent to the API server.
pub trait ToJson {
    /// The object's JSON text.
    fn to_json(&self) -> Result<Vec<u8>, Error>;
}

macro_rules! from_json {
    ($object:ty, $find_type:expr) => {
        impl FromJson for $object {
            #[inline(never)]
            fn from_json(text: &str) -> Result<Self, Error> {
                lenient::from_str(text, $find_type)
            }
        }
    };
}

macro_rules! to_json {
    ($object:ty) => {
        impl ToJson for $object {
            #[inline(never)]
            fn to_json(&self) -> Result<Vec<u8>, Error> {
                serde_json::to_vec(self)
            }
        }
    };
}

macro_rules! objects {
    ($($object:ty),* $(,)?) => {
        $(from_json!($object, || {
            schema::lookup_kind(<$object>::GROUP, <$object>::VERSION, <$object>::KIND)
        });
        to_json!($object);)*
    };
}

impl<K> FromJson for PartialObjectMeta<K>
where
    Self: DeserializeOwned,
{
    fn from_json(text: &str) -> Result<Self, Error> {
        lenient::from_str(text, lenient::metadata_only)
    }
}

impl FromJson for serde_json::Value {
    fn from_json(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text)
    }
}

from_json!(DynamicObject, lenient::metadata_only);
from_json!(core::PodTemplateSpec, || schema::lookup(
    "core/v1.PodTemplateSpec"
));
to_json!(DynamicObject);
to_json!(serde_json::Value);

objects! {
    admissionregistration::MutatingAdmissionPolicy,
    admissionregistration::MutatingAdmissionPolicyBinding,
    admissionregistration::MutatingWebhookConfiguration,
    admissionregistration::ValidatingAdmissionPolicy,
    admissionregistration::ValidatingAdmissionPolicyBinding,
    admissionregistration::ValidatingWebhookConfiguration,
    apiextensions::CustomResourceDefinition,
    apiregistration::APIService,
    apps::ControllerRevision,
    apps::DaemonSet,
    apps::Deployment,
    apps::ReplicaSet,
    apps::StatefulSet,
    authentication::TokenRequest,
    authentication::TokenReview,
    authorization::SelfSubjectAccessReview,
    authorization::SubjectAccessReview,
    autoscaling::HorizontalPodAutoscaler,
    autoscaling_v1::Scale,
    batch::CronJob,
    batch::Job,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::Binding,
    core::ConfigMap,
    core::Endpoints,
    core::Event,
    core::LimitRange,
    core::Namespace,
    core::Node,
    core::PersistentVolume,
    core::PersistentVolumeClaim,
    core::Pod,
    core::ReplicationController,
    core::ResourceQuota,
    core::Secret,
    core::Service,
    core::ServiceAccount,
    discovery::EndpointSlice,
    events::Event,
    networking::IPAddress,
    networking::Ingress,
    networking::IngressClass,
    networking::NetworkPolicy,
    networking::ServiceCIDR,
    node::RuntimeClass,
    policy::Eviction,
    policy::PodDisruptionBudget,
    rbac::ClusterRole,
    rbac::ClusterRoleBinding,
    rbac::Role,
    rbac::RoleBinding,
    resource::DeviceClass,
    resource::ResourceClaim,
    resource::ResourceClaimTemplate,
    resource::ResourceSlice,
    scheduling::PriorityClass,
    storage::CSIDriver,
    storage::CSINode,
    storage::CSIStorageCapacity,
    storage::StorageClass,
    storage::VolumeAttachment,
    storage::VolumeAttributesClass,
    storagemigration::StorageVersionMigration,
}
