package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/stelelog/stele/consumer"
	"github.com/stelelog/stele/internal/config"
)

// requestTimeout bounds one command's talk with the cluster where the command
// itself has no reason to wait longer.
const requestTimeout = 15 * time.Second

// dialer remembers which addresses could not be reached, so that the error can
// say whether the bootstrap address is wrong or the broker handed out an address
// that this machine cannot reach: the commonest trouble with Kafka clients.
type dialer struct {
	bootstrap []string
	mu        sync.Mutex
	reached   map[string]bool
	failed    map[string]error
	tries     map[string]int // in vain, at addresses that never answered
	giveUp    context.CancelFunc
}

// hopeless is how many times in vain an address is tried that a broker handed out and
// that never answered. One that did may only be restarting, and is tried for longer.
const hopeless = 3

// guard ends the context when it becomes clear that an address cannot be reached.
func (d *dialer) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.giveUp = cancel
	return ctx, cancel
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var direct net.Dialer
	conn, err := direct.DialContext(ctx, network, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed[addr] = err
		if d.tries[addr]++; d.tries[addr] >= hopeless && !d.reached[addr] && !slices.Contains(d.bootstrap, addr) && d.giveUp != nil {
			d.giveUp()
		}
	} else {
		d.reached[addr] = true
		delete(d.failed, addr)
	}
	return conn, err
}

// explain adds to err what is known of unreachable addresses and what to do.
func (d *dialer) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	bootstrapped := slices.ContainsFunc(d.bootstrap, func(addr string) bool { return d.reached[addr] })
	for addr, cause := range d.failed {
		switch {
		case slices.Contains(d.bootstrap, addr) && !bootstrapped:
			return fmt.Errorf("no broker answers at %s (%s): is it running there? start one with `stele serve`, or name another with --bootstrap-server", strings.Join(d.bootstrap, ","), plainCause(cause))
		case !slices.Contains(d.bootstrap, addr) && errors.Is(cause, syscall.ECONNREFUSED):
			// A broker that is down looks so too, and is the commoner case once there are several.
			return fmt.Errorf("the broker at %s told clients to connect to %s, where nothing listens (%s): start that broker; if it runs, set advertised.listeners on it to an address that clients can reach", strings.Join(d.bootstrap, ","), addr, plainCause(cause))
		case !slices.Contains(d.bootstrap, addr):
			return fmt.Errorf("the broker at %s told clients to connect to %s, which cannot be reached from here (%s): set advertised.listeners on that broker to an address that clients can reach", strings.Join(d.bootstrap, ","), addr, plainCause(cause))
		}
	}
	var closed *kgo.ErrFirstReadEOF
	switch {
	case strings.Contains(err.Error(), "invalid large response size"), strings.Contains(err.Error(), "invalid negative response size"):
		return fmt.Errorf("what answers at %s does not speak Kafka's protocol: name a listener for clients with --bootstrap-server, 127.0.0.1:9092 by default", strings.Join(d.bootstrap, ","))
	case strings.Contains(err.Error(), "controller broker is not available"):
		return fmt.Errorf("%w: no controller is active; a majority of the voters must run, and /readyz and the log of each say what they wait for", err)
	case errors.As(err, &closed):
		return fmt.Errorf("%s closed the connection at the first request: it may be no listener for clients (a controller's, for one), or want TLS or SASL", strings.Join(d.bootstrap, ","))
	}
	return err
}

func plainCause(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return "no such host: " + dns.Name
	}
	return err.Error()
}

// connect makes a client for one command. Options come after the shared ones.
func (e *env) connect(cmdFlags interface{ Changed(string) bool }, options ...kgo.Opt) (*kgo.Client, *dialer, error) {
	bootstrap, shared, err := e.clientConfig(cmdFlags.Changed("bootstrap-server"))
	if err != nil {
		return nil, nil, err
	}
	if len(bootstrap) == 0 {
		return nil, nil, usagef("--bootstrap-server is empty: write host:port, such as 127.0.0.1:9092")
	}
	for _, addr := range bootstrap {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || !isPort(port) {
			return nil, nil, usagef("--bootstrap-server %s: write host:port, such as 127.0.0.1:9092", addr)
		}
	}
	d := &dialer{bootstrap: bootstrap, reached: map[string]bool{}, failed: map[string]error{}, tries: map[string]int{}}
	shared = append(shared, kgo.SeedBrokers(bootstrap...), kgo.Dialer(d.dial), kgo.RetryTimeout(requestTimeout), kgo.MetadataMinAge(20*time.Millisecond))
	client, err := kgo.NewClient(append(shared, options...)...)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return client, d, nil
}

// consumerOptions are the shared settings as the consumer package takes them.
func (e *env) consumerOptions(cmdFlags interface{ Changed(string) bool }) (consumer.Options, *dialer, error) {
	client, d, err := e.connect(cmdFlags)
	if err != nil {
		return consumer.Options{}, nil, err
	}
	defer client.Close()
	o := consumer.Options{BootstrapServers: d.bootstrap, RetryBackoff: 20 * time.Millisecond}
	o.ClientID, _ = client.OptValue(kgo.ClientID).(string)
	o.ClientRack, _ = client.OptValue(kgo.Rack).(string)
	o.RequestTimeout, _ = client.OptValue(kgo.RequestTimeoutOverhead).(time.Duration)
	o.TLS, _ = client.OptValue(kgo.DialTLSConfig).(*tls.Config)
	o.SASL, _ = client.OptValue(kgo.SASL).([]sasl.Mechanism)
	o.Dialer, _ = client.OptValue(kgo.Dialer).(func(context.Context, string, string) (net.Conn, error))
	return o, d, nil
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// clientConfig reads --command-config: the client settings that Kafka's tools
// take and that mean something here. What is not understood is an error, so that
// nobody believes in a setting that has no effect.
func (e *env) clientConfig(bootstrapGiven bool) (bootstrap []string, options []kgo.Opt, err error) {
	bootstrap = e.bootstrap
	if e.commandConfig == "" {
		return bootstrap, []kgo.Opt{kgo.ClientID("stele")}, nil
	}
	text, err := os.ReadFile(e.commandConfig)
	if err != nil {
		return nil, nil, usagef("--command-config: %w", err)
	}
	clientID := "stele"
	for _, setting := range config.ParseProperties(string(text)) {
		name, value := setting.Key, setting.Value
		switch name {
		case "bootstrap.servers":
			if !bootstrapGiven {
				bootstrap = strings.Split(value, ",")
			}
		case "client.id":
			clientID = value
		case "request.timeout.ms", "default.api.timeout.ms":
			ms, err := strconv.Atoi(value)
			if err != nil || ms <= 0 {
				return nil, nil, usagef("--command-config %s: %s=%s: a positive number of milliseconds", e.commandConfig, name, value)
			}
			options = append(options, kgo.RequestTimeoutOverhead(time.Duration(ms)*time.Millisecond))
		case "client.rack":
			options = append(options, kgo.Rack(value))
		case "security.protocol":
			if value != "PLAINTEXT" {
				return nil, nil, usagef("--command-config %s: security.protocol=%s: only PLAINTEXT works in this version", e.commandConfig, value)
			}
		default:
			return nil, nil, usagef("--command-config %s: %s is not a setting that this version uses", e.commandConfig, name)
		}
	}
	return bootstrap, append(options, kgo.ClientID(clientID)), nil
}

// admin runs work with an administrative client, and explains its error.
func (e *env) admin(ctx context.Context, flags interface{ Changed(string) bool }, work func(context.Context, *kadm.Client) error) error {
	client, d, err := e.connect(flags)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := d.guard(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, 2*requestTimeout)
	defer stop()
	if err := work(ctx, kadm.NewClient(client)); err != nil {
		return d.explain(err)
	}
	return nil
}

// advice turns the protocol's errors into what to do about them.
var advice = map[*kerr.Error]string{
	kerr.TopicAlreadyExists:        "choose another name, or `stele topic alter` to change it",
	kerr.UnknownTopicOrPartition:   "no such topic; `stele topic list` shows those that exist",
	kerr.InvalidTopicException:     "use letters, digits, dot, dash and underscore, at most 249 of them",
	kerr.InvalidReplicationFactor:  "there are fewer brokers than replicas asked for; `stele cluster describe` lists them",
	kerr.InvalidPartitions:         "the number of partitions must be positive, and can only grow",
	kerr.NonEmptyGroup:             "the group has members; stop its consumers first",
	kerr.GroupIDNotFound:           "no such group; `stele group list` shows those that exist",
	kerr.InvalidConfig:             "names and values are Kafka's; `stele config get --topic TOPIC --all`, or --broker ID --all, lists them",
	kerr.MessageTooLarge:           "the topic's max.message.bytes is lower; `stele config get --topic TOPIC max.message.bytes` shows it",
	kerr.TopicDeletionDisabled:     "the broker runs with delete.topic.enable=false",
	kerr.NotLeaderForPartition:     "leadership just moved; try again",
	kerr.BrokerIDNotRegistered:     "no such broker; `stele cluster describe` lists them",
	kerr.MismatchedEndpointType:    "a controller listens there; name a listener for clients with --bootstrap-server, 127.0.0.1:9092 by default",
	kerr.CoordinatorNotAvailable:   "the coordinator is starting; try again",
	kerr.CoordinatorLoadInProgress: "the coordinator is loading; try again",
	kerr.TransactionalIDNotFound:   "no such transactional id; `stele txn list` shows those that exist",
}

// failed says what failed, on what, and what to do.
func failed(what string, err error, message ...string) error {
	detail := ""
	for _, m := range message {
		if m != "" {
			detail = " (" + m + ")"
		}
	}
	var protocol *kerr.Error
	if errors.As(err, &protocol) {
		if strings.HasPrefix(detail, " ("+protocol.Message+":") {
			detail = "" // the broker only repeats the name of its error
		}
		if todo := advice[protocol]; todo != "" {
			return fmt.Errorf("%s: %s%s: %s", what, protocol.Message, detail, todo)
		}
		if detail != "" {
			return fmt.Errorf("%s: %s%s", what, protocol.Message, detail) // says more than the error's description, which guesses
		}
		return fmt.Errorf("%s: %s: %s", what, protocol.Message, protocol.Description)
	}
	return fmt.Errorf("%s: %w%s", what, err, detail)
}

func isAlreadyThere(err error) bool { return errors.Is(err, kerr.TopicAlreadyExists) }
func isNotThere(err error) bool     { return errors.Is(err, kerr.UnknownTopicOrPartition) }

// electionPatience is how long a leader that was just elected may take to know its high watermark.
const electionPatience = 5 * time.Second

// settledOffsets asks for offsets, and again while all that is wrong is a leader that was just elected.
func settledOffsets(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topics ...string) (kadm.ListedOffsets, error) {
	deadline := time.Now().Add(electionPatience)
	for {
		listed, err := list(ctx, topics...)
		settling := false
		listed.Each(func(o kadm.ListedOffset) {
			settling = settling || errors.Is(o.Err, kerr.OffsetNotAvailable) || errors.Is(o.Err, kerr.NotLeaderForPartition)
		})
		if !settling || time.Now().After(deadline) {
			return listed, err
		}
		select {
		case <-ctx.Done():
			return listed, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
