// Package kafka fills a node of Apache Kafka with one of everything that a node of Stele can take over, says what
// clients see of it, and packs data directories into one file. record/ makes the golden directory of it; the interop
// tests do the same with a live Kafka.
package kafka
