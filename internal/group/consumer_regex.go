package group

import (
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/metadata"
)

// regexPause is how long what the regular expressions of a group matched is good for at least.
const regexPause = 10 * time.Second

// A regexRefresh is what is known of the last time that a group's regular expressions were resolved.
type regexRefresh struct {
	running bool
	at      time.Time
	topics  *metadata.Image // as of which
}

// A regexJob asks which topics the regular expressions of a group match. It is run beside the shard.
type regexJob struct {
	group       string
	regexes     []string
	mayDescribe func(topic string) bool // the client's at whose heartbeat the job was made; nil: it may all
	image       *metadata.Image
}

// A RegexResult is what the regular expressions of a group matched: the outcome of an effect's work beside the shard.
type RegexResult struct {
	group  string
	image  *metadata.Image
	topics map[string][]string
}

// compileRegex compiles a regular expression that has to match whole names.
func compileRegex(text string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(text); err != nil {
		return nil, err
	}
	return regexp.Compile("^(?:" + text + ")$")
}

// run resolves: whole names count, and only topics of which the client may know.
func (j *regexJob) run() *RegexResult {
	result := &RegexResult{group: j.group, image: j.image, topics: map[string][]string{}}
	for _, text := range j.regexes {
		matched := []string{}
		if re, err := compileRegex(text); err == nil { // it was compiled before; an old version's may not be
			for name := range j.image.Topics().All() {
				if re.MatchString(name) && (j.mayDescribe == nil || j.mayDescribe(name)) {
					matched = append(matched, name)
				}
			}
		}
		slices.Sort(matched)
		result.topics[text] = matched
	}
	return result
}

// refreshRegexes asks for the regular expressions of a group to be resolved anew, when that is due.
func (s *Shard) refreshRegexes(b *beat) {
	used := maps.Clone(b.g.byRegex)
	if b.known != nil && deref(b.known.Regex) != "" {
		add(used, *b.known.Regex, -1)
	}
	if deref(b.member.Regex) != "" {
		add(used, *b.member.Regex, 1)
	}
	soft := &s.softConsumer(b.g.id).regexes
	if len(used) == 0 || soft.running || !soft.at.IsZero() && b.now.Sub(soft.at) <= regexPause {
		return
	}
	due := soft.at.IsZero() || b.now.Sub(soft.at) > s.config.RegexRefreshInterval
	if !due && soft.topics != s.image {
		if due = topicsMade(soft.topics, s.image); !due {
			soft.topics = s.image // the next heartbeat need not look again
		}
	}
	for regex := range used {
		if _, resolved := b.g.regexes.Get(regex); !resolved {
			due = true
		}
	}
	if !due {
		return
	}
	soft.running = true
	job := &regexJob{group: b.g.id, regexes: sortedKeys(used), mayDescribe: b.client.MayDescribe, image: s.image}
	b.fx.Beside = func() any { return job.run() }
}

// topicsMade says whether a topic was made between two images.
func topicsMade(before, after *metadata.Image) bool {
	if before == after {
		return false
	}
	for name, topic := range after.Topics().All() {
		if old, ok := before.Topic(name); !ok || old.ID != topic.ID {
			return true
		}
	}
	return false
}

// RegexesResolved takes over what regular expressions matched. If that changes what there is to assign, the group epoch rises.
func (s *Shard) RegexesResolved(now time.Time, result *RegexResult) Effects {
	var fx Effects
	soft := s.soft.consumers[result.group]
	if soft == nil {
		return fx
	}
	soft.regexes = regexRefresh{at: now, topics: result.image}
	g := s.replicated.consumers[result.group]
	if !g.exists() {
		return fx
	}
	changed := false
	for _, regex := range sortedKeys(result.topics) {
		if g.byRegex[regex] == 0 {
			continue
		}
		topics := result.topics[regex]
		var before []string
		if old, ok := g.regexes.Get(regex); ok {
			before = old.Topics
		}
		changed = changed || !slices.Equal(before, topics)
		fx.Append(&ConsumerRegexRecord{Group: g.id, Regex: regex, Value: &ConsumerRegexValue{Topics: topics, Version: result.image.Offset(), Timestamp: now.UnixMilli()}})
	}
	epoch, oldHash := g.groupEpoch()
	hash := s.topicsHash(g.topics(nil, result.topics))
	if changed || hash != oldHash {
		fx.Append(&ConsumerGroupRecord{Group: g.id, Value: &ConsumerGroupValue{Epoch: epoch + 1, MetadataHash: hash}})
	}
	if fx.Records != nil {
		s.onFinish(&fx, func(_ WriteID, _ time.Time, err error, _ *Effects) {
			if soft := s.soft.consumers[g.id]; err != nil && soft != nil {
				soft.regexes.topics = metadata.EmptyImage() // what was found is forgotten: look again
			}
		})
	}
	return fx
}
