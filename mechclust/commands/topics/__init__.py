"""``mechclust topics``: do a model's attention and embeddings keep words of a topic together?"""
