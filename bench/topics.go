package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/bench/replay"
)

const adminTimeout = 60 * time.Second

// createTopic makes a topic and waits until all its partitions can be used.
func (b *bench) createTopic(s server, topic string, partitions int) error {
	return b.createTopicWith(s, topic, partitions, nil)
}

// createTopicWith does so with settings of the topic's own.
func (b *bench) createTopicWith(s server, topic string, partitions int, settings map[string]string) error {
	conn, err := probe.Dial(s.addr(), adminTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, int32(partitions), 1
	for name, value := range settings {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, &value
		t.Configs = append(t.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis, req.Topics = 7, int32(adminTimeout/time.Millisecond), append(req.Topics, t)
	resp, err := conn.Request(req)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("create %s: %w", topic, err)
		}
	}
	return b.until("partitions of "+topic+" ready", func() (bool, error) {
		_, err := replay.EndOffsets(s.addr(), topic, partitions)
		var protocol *kerr.Error
		if errors.As(err, &protocol) && protocol.Retriable {
			return false, nil
		}
		return err == nil, err
	})
}

// deleteTopic deletes a topic and waits until its files have gone.
func (b *bench) deleteTopic(s server, topic string) error {
	conn, err := probe.Dial(s.addr(), adminTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version, req.TimeoutMillis, req.TopicNames = 5, int32(adminTimeout/time.Millisecond), append(req.TopicNames, topic)
	resp, err := conn.Request(req)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.DeleteTopicsResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("delete %s: %w", topic, err)
		}
	}
	return b.until("files of "+topic+" gone", func() (bool, error) {
		dirs, err := partitionDirs(s, topic)
		return len(dirs) == 0, err
	})
}

// partitionDirs are the directories of a topic's partitions, those included that are being deleted.
func partitionDirs(s server, topic string) (dirs []string, err error) {
	name := regexp.MustCompile(`^` + regexp.QuoteMeta(topic) + `[-.]`)
	err = filepath.WalkDir(s.data(), func(path string, d os.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil // deleted while we look
		case err == nil && d.IsDir() && name.MatchString(d.Name()):
			dirs = append(dirs, path)
			return filepath.SkipDir
		}
		return err
	})
	return dirs, err
}

// until tries ok every few milliseconds.
func (b *bench) until(what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(b.ctx, adminTimeout)
	defer cancel()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// chill writes a topic's files to disk and drops them from the page cache, without touching anyone else's.
func chill(s server, topic string) error {
	dirs, err := partitionDirs(s, topic)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil {
			return err
		}
		for _, name := range names {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			err = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
			if err != nil {
				return err
			}
		}
	}
	return nil
}
