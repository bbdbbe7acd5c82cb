"""How well does a knowledge base answer questions whose answers are known?"""
