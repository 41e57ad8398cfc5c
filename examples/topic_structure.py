"""Train a one-layer masked LM on documents that mix topics, and see the topics in its embeddings and attention."""

from mechclust import TrainConfig, WeightNorms, build_model, train
from mechclust.studies.topic_structure import TopicTransformerConfig
from probes import TopicAttention, TopicEmbedding, run
from tasks import TopicDocuments

task = TopicDocuments(n_documents=2000)  # 10 topics of 10 words; each document mixes a few
model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab))
norms = WeightNorms()
settings = TrainConfig(steps=300, batch_size=40, lr=0.01, optimizer="adam", schedule="constant", weight_decay=0.0)
train(model, task, settings, callbacks=[norms])

text = list(task.text("dev", n=200))  # unmasked; one topic per token id, -1 for special tokens
attention, embedding = run(model, text, [TopicAttention(task.token_topics), TopicEmbedding(task.token_topics)])

ratio, high = float(attention["overall_ratio"]), float(attention["overall_ratio_null_high"])
print(f"attention within a topic / across topics: {ratio:.2f} (by chance up to {high:.2f})")
cosine, high = (float(embedding.sel(name, similarity="cosine")) for name in ("difference", "difference_null_high"))
print(f"cosine of embeddings, same topic minus different topic: {cosine:.2f} (by chance up to {high:.2f})")
curves = norms.compute()
for weight in curves.coords["weight"]:
    norm = curves.sel("norm", weight=weight)
    print(f"norm of {weight}: {float(norm[0]):.1f} before training, {float(norm[-1]):.1f} after")
