// Package tencentvpc replaces the backend of Tencent's cloud, whose module is large and which
// no test uses.
package tencentvpc
