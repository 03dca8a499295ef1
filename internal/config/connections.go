package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// ConnectionsPerIPOverrides reads max.connections.per.ip.overrides: the limit of each address that has one of
// its own. Host names are refused: who is behind one may change while the limit stands.
func (b *Broker) ConnectionsPerIPOverrides() (map[string]int, error) {
	const name = "max.connections.per.ip.overrides"
	overrides := map[string]int{}
	for _, part := range SplitList(b.String(name)) {
		bad := &ValueError{name, part, "a list of address:count"}
		colon := strings.LastIndexByte(part, ':')
		if colon < 0 {
			return nil, bad
		}
		addr, err := netip.ParseAddr(strings.Trim(part[:colon], "[]"))
		if err != nil {
			return nil, bad
		}
		limit, err := strconv.ParseInt(part[colon+1:], 10, 32)
		if err != nil || limit < 0 {
			return nil, bad
		}
		overrides[addr.Unmap().String()] = int(limit)
	}
	return overrides, nil
}
