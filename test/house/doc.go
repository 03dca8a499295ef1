// Package house holds no code: its tests read the whole tree and hold it to the
// house's own laws, so that a direction or a habit cannot rot unseen.
package house
