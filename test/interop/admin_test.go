//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// manager is a client that can administer. What it has no way to do it answers with errCannot.
type manager interface {
	admin(ctx context.Context, r adminRequest) (adminAnswer, error)
}

// adminRequest is one thing to do, and what it is done to.
type adminRequest struct {
	Do         string            `json:"do"` // the name of a check below
	Topic      string            `json:"topic,omitempty"`
	Group      string            `json:"group,omitempty"`
	Partitions int32             `json:"partitions,omitempty"` // how many there shall be
	Partition  int32             `json:"partition"`
	Offset     int64             `json:"offset"`
	Configs    map[string]string `json:"configs,omitempty"`
}

// adminAnswer is what is asked for; the rest is absent.
type adminAnswer struct {
	Names      []string          `json:"names"` // of topics or groups
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	State      string            `json:"state"` // of a group
	Offset     int64             `json:"offset"`
}

// admin has a client make, change, describe and delete topics, configs, records, groups and offsets, each looked
// at from elsewhere. Every check makes what it needs by itself, so that each stands alone.
func (s *suite) admin(t *testing.T, c client) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.target.Addr()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	ask := func(ctx context.Context, r adminRequest) (adminAnswer, error) {
		m, ok := c.(manager)
		if !ok {
			return adminAnswer{}, errCannot
		}
		return m.admin(ctx, r)
	}
	partitions := func(ctx context.Context, topic string) (int, error) {
		details, err := adm.ListTopics(ctx, topic)
		return len(details[topic].Partitions), errors.Join(err, details[topic].Err)
	}
	// config waits for a topic's setting to have a value, for 5 s: it is there at once, or not at all.
	config := func(ctx context.Context, topic, name, want string) error {
		for end := time.Now().Add(5 * time.Second); ; {
			list, err := adm.DescribeTopicConfigs(ctx, topic)
			if err != nil {
				return err
			}
			r, err := list.On(topic, nil)
			if err = errors.Join(err, r.Err); err != nil {
				return err
			}
			i := slices.IndexFunc(r.Configs, func(c kadm.Config) bool { return c.Key == name })
			if i < 0 || r.Configs[i].Value == nil {
				return fmt.Errorf("%s has no config %s", topic, name)
			}
			err = expect("config "+name, *r.Configs[i].Value, want)
			if err == nil || time.Now().After(end) {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	// offsets makes a group with a commit at 5 in each of the topic's two partitions.
	offsets := func(ctx context.Context, group, topic string) error {
		var o kadm.Offsets
		for p := range int32(2) {
			o.AddOffset(topic, p, 5, -1)
		}
		return adm.CommitAllOffsets(ctx, group, o)
	}

	for _, row := range []struct {
		do string
		f  func(ctx context.Context, topic, group string) error
	}{
		{"create-topic", func(ctx context.Context, topic, _ string) error {
			topic += "-made"
			r := adminRequest{Do: "create-topic", Topic: topic, Partitions: 3, Configs: map[string]string{"retention.ms": "123456"}}
			if _, err := ask(ctx, r); err != nil {
				return err
			}
			err := eventually(ctx, func() error {
				n, err := partitions(ctx, topic)
				return errors.Join(err, expect("partitions", n, 3))
			})
			if err := errors.Join(err, config(ctx, topic, "retention.ms", "123456")); err != nil {
				return err
			}
			_, err = ask(ctx, r)
			return says("made a second time", err, "exist")
		}},
		{"list-topics", func(ctx context.Context, topic, _ string) error {
			a, err := ask(ctx, adminRequest{Do: "list-topics"})
			return errors.Join(err, holds(a.Names, topic))
		}},
		{"describe-topic", func(ctx context.Context, topic, _ string) error {
			a, err := ask(ctx, adminRequest{Do: "describe-topic", Topic: topic})
			return errors.Join(err, expect("partitions", a.Partitions, 2))
		}},
		{"create-partitions", func(ctx context.Context, topic, _ string) error {
			if _, err := ask(ctx, adminRequest{Do: "create-partitions", Topic: topic, Partitions: 5}); err != nil {
				return err
			}
			return eventually(ctx, func() error {
				n, err := partitions(ctx, topic)
				return errors.Join(err, expect("partitions", n, 5))
			})
		}},
		{"describe-configs", func(ctx context.Context, topic, _ string) error {
			a, err := ask(ctx, adminRequest{Do: "describe-configs", Topic: topic})
			return errors.Join(err, expect("cleanup.policy", a.Configs["cleanup.policy"], "delete"),
				expect("retention.ms", a.Configs["retention.ms"], "7654321"),
				expect("max.message.bytes", a.Configs["max.message.bytes"], "1048588"))
		}},
		{"alter-configs", func(ctx context.Context, topic, _ string) error {
			// All of them at once: what is not named goes back to its default.
			_, err := ask(ctx, adminRequest{Do: "alter-configs", Topic: topic, Configs: map[string]string{"segment.bytes": "2000000"}})
			if err != nil {
				return err
			}
			return errors.Join(config(ctx, topic, "segment.bytes", "2000000"), config(ctx, topic, "retention.ms", "604800000"))
		}},
		{"incremental-configs", func(ctx context.Context, topic, _ string) error {
			_, err := ask(ctx, adminRequest{Do: "incremental-configs", Topic: topic, Configs: map[string]string{"segment.bytes": "2000000"}})
			if err != nil {
				return err
			}
			return errors.Join(config(ctx, topic, "segment.bytes", "2000000"), config(ctx, topic, "retention.ms", "7654321"))
		}},
		{"list-offsets", func(ctx context.Context, topic, _ string) error {
			a, err := ask(ctx, adminRequest{Do: "list-offsets", Topic: topic, Partition: 1})
			return errors.Join(err, expect("the end", a.Offset, 10))
		}},
		{"delete-records", func(ctx context.Context, topic, _ string) error {
			if _, err := ask(ctx, adminRequest{Do: "delete-records", Topic: topic, Partition: 1, Offset: 4}); err != nil {
				return err
			}
			list, err := adm.ListStartOffsets(ctx, topic)
			o, _ := list.Lookup(topic, 1)
			return errors.Join(err, o.Err, expect("the beginning", o.Offset, 4))
		}},
		{"list-groups", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			a, err := ask(ctx, adminRequest{Do: "list-groups"})
			return errors.Join(err, holds(a.Names, group))
		}},
		{"describe-group", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			a, err := ask(ctx, adminRequest{Do: "describe-group", Group: group})
			return errors.Join(err, expect("state", strings.ToLower(a.State), "empty"))
		}},
		{"group-offset", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			a, err := ask(ctx, adminRequest{Do: "group-offset", Group: group, Topic: topic, Partition: 1})
			return errors.Join(err, expect("offset", a.Offset, 5))
		}},
		{"set-group-offset", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			_, err := ask(ctx, adminRequest{Do: "set-group-offset", Group: group, Topic: topic, Partition: 1, Offset: 7})
			if err != nil {
				return err
			}
			at, err := s.committed(ctx, group, topic, 1)
			return errors.Join(err, expect("offset", at, 7))
		}},
		{"delete-group-offset", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			if _, err := ask(ctx, adminRequest{Do: "delete-group-offset", Group: group, Topic: topic, Partition: 1}); err != nil {
				return err
			}
			left, err := adm.FetchOffsets(ctx, group)
			if err != nil {
				return err
			}
			if _, ok := left.Lookup(topic, 1); ok {
				return mismatch("the offset is still there")
			}
			o, _ := left.Lookup(topic, 0)
			return expect("offset of the other partition", o.At, 5)
		}},
		{"delete-group", func(ctx context.Context, topic, group string) error {
			if err := offsets(ctx, group, topic); err != nil {
				return err
			}
			if _, err := ask(ctx, adminRequest{Do: "delete-group", Group: group}); err != nil {
				return err
			}
			list, err := adm.ListGroups(ctx)
			if err != nil {
				return err
			}
			if _, ok := list[group]; ok {
				return mismatch("the group is still there")
			}
			return nil
		}},
		{"delete-topic", func(ctx context.Context, topic, _ string) error {
			if _, err := ask(ctx, adminRequest{Do: "delete-topic", Topic: topic}); err != nil {
				return err
			}
			return eventually(ctx, func() error {
				all, err := adm.ListTopics(ctx)
				if err != nil {
					return err
				}
				if all.Has(topic) {
					return mismatch("the topic is still there")
				}
				return nil
			})
		}},
	} {
		s.check(t, c, "admin-"+row.do, func(ctx context.Context) error {
			if _, ok := c.(manager); !ok {
				return errCannot
			}
			topic, group := "admin-"+row.do+"-"+c.name(), "admin-"+row.do+"-"+c.name()
			if err := createTopic(ctx, s.target.Addr(), topic, 2, map[string]string{"retention.ms": "7654321"}); err != nil {
				return err
			}
			var records []record
			for i := range 10 {
				records = append(records, record{Partition: 1, Key: []byte("k"), Value: fmt.Appendf(nil, "%d", i)})
			}
			f := franz{s.target.Addr()}
			if err := f.produce(ctx, batch{topic: topic, codec: "none", records: records}); err != nil {
				return err
			}
			return row.f(ctx, topic, group)
		})
	}
}

func expect[T comparable](what string, got, want T) error {
	if got != want {
		return mismatch(fmt.Sprintf("%s: %v instead of %v", what, got, want))
	}
	return nil
}

func holds(names []string, want string) error {
	if !slices.Contains(names, want) {
		return mismatch(fmt.Sprintf("%s is not among the %d that are listed", want, len(names)))
	}
	return nil
}

// says wants an error that holds a word.
func says(what string, err error, word string) error {
	switch {
	case err == nil:
		return mismatch(what + ": there was no error")
	case !strings.Contains(strings.ToLower(err.Error()), word):
		return mismatch(fmt.Sprintf("%s: the error does not say %q: %v", what, word, err))
	}
	return nil
}
