//! The Auth service: clients authenticate with certificates, so everything except the status is
//! refused.

use proto::etcdserverpb as pb;
use proto::etcdserverpb::auth_server::Auth;
use tonic::{Request, Response, Status};

use crate::service::{Etcd, refuse};

/// Generates the methods that are refused.
macro_rules! refused {
    ($($method:ident: $request:ident => $response:ident, $what:literal;)*) => {
        #[tonic::async_trait]
        impl Auth for Etcd {
            async fn auth_status(
                &self,
                _: Request<pb::AuthStatusRequest>,
            ) -> Result<Response<pb::AuthStatusResponse>, Status> {
                // The values of an etcd whose authentication was never changed.
                let auth_revision = 1;
                let header = self.header_now();
                Ok(Response::new(pb::AuthStatusResponse { header, enabled: false, auth_revision }))
            }

            async fn authenticate(
                &self,
                _: Request<pb::AuthenticateRequest>,
            ) -> Result<Response<pb::AuthenticateResponse>, Status> {
                Err(Status::failed_precondition("etcdserver: authentication is not enabled"))
            }

            $(async fn $method(
                &self,
                _: Request<pb::$request>,
            ) -> Result<Response<pb::$response>, Status> {
                refuse($what, "clients are known by their certificates")
            })*
        }
    };
}

refused! {
    auth_enable: AuthEnableRequest => AuthEnableResponse, "authentication by password";
    auth_disable: AuthDisableRequest => AuthDisableResponse, "authentication by password";
    user_add: AuthUserAddRequest => AuthUserAddResponse, "a user of etcd";
    user_get: AuthUserGetRequest => AuthUserGetResponse, "a user of etcd";
    user_list: AuthUserListRequest => AuthUserListResponse, "a user of etcd";
    user_delete: AuthUserDeleteRequest => AuthUserDeleteResponse, "a user of etcd";
    user_change_password: AuthUserChangePasswordRequest => AuthUserChangePasswordResponse, "a user \
        of etcd";
    user_grant_role: AuthUserGrantRoleRequest => AuthUserGrantRoleResponse, "a user of etcd";
    user_revoke_role: AuthUserRevokeRoleRequest => AuthUserRevokeRoleResponse, "a user of etcd";
    role_add: AuthRoleAddRequest => AuthRoleAddResponse, "a role of etcd";
    role_get: AuthRoleGetRequest => AuthRoleGetResponse, "a role of etcd";
    role_list: AuthRoleListRequest => AuthRoleListResponse, "a role of etcd";
    role_delete: AuthRoleDeleteRequest => AuthRoleDeleteResponse, "a role of etcd";
    role_grant_permission: AuthRoleGrantPermissionRequest => AuthRoleGrantPermissionResponse, "a \
        role of etcd";
    role_revoke_permission: AuthRoleRevokePermissionRequest => AuthRoleRevokePermissionResponse, "a role of etcd";
}
