//go:build tools

// etcd's tools, so that go.mod contains their dependencies.
package main

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
)
