// Package differential sends the same sequences of requests to Apache Kafka and to Stele and compares the answers field by
// field. The list of accepted differences is plain Go, so that docs/compatibility.md is generated from it; everything
// that runs a broker stands behind the build tag interop.
package differential
