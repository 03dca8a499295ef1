// Package chaos holds tests that hurt real processes: kill -9 at named failpoints under load, a full disk, data
// directories that are not ours, requests made to exhaust memory. They stand behind the build tag chaos and need
// root; run.sh runs them.
package chaos
