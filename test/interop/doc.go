// Package interop holds the tests that put other people's clients, and Apache Kafka's own tools, before a running
// Stele: see README.md. They stand behind the build tag interop because they need a JDK, Maven, kcat and
// confluent-kafka; run.sh installs those and runs them.
package interop
