package cli

import (
	"fmt"

	"github.com/stelelog/stele/internal/config"
)

// refuseUnprotected refuses a configuration that asks for protection which this version does not give: a node
// that came up all the same would let anybody in where its owner believes it guarded.
func refuseUnprotected(c *config.Broker) error {
	for _, l := range append(c.ClientListeners(), c.ControllerListeners()...) {
		protocol, err := c.SecurityProtocol(l.Name)
		if err != nil {
			return err
		}
		if protocol != config.Plaintext {
			return fmt.Errorf("listener %s: TLS and SASL are not served by this version: map it to PLAINTEXT in listener.security.protocol.map and guard its port by other means", l.Name)
		}
	}
	if class := c.String("authorizer.class.name"); class != "" {
		return fmt.Errorf("authorizer.class.name=%s: this version has no authorizer and would allow everything: remove the setting and guard the ports by other means", class)
	}
	return nil
}
